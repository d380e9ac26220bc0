"""Connections whose client no longer accepts any bytes: the system drops them, where it supports that."""

import socket
import sys
from contextlib import suppress
from typing import Any

from starlette.types import Receive


def drop_if_silent(receive: Receive, seconds: float) -> None:
    """Have the system drop a request's connection when its client accepts no bytes for this long.

    A response can only end: bytes it has already handed over would keep the connection open until the client takes
    them. This works under servers that let an application see the connection, as uvicorn does.
    """
    if sys.platform != "linux":
        return
    transport: Any = getattr(getattr(receive, "__self__", None), "transport", None)
    connection = transport.get_extra_info("socket") if hasattr(transport, "get_extra_info") else None
    if connection is None:
        return
    with suppress(OSError, ValueError):
        # Not every event loop exposes a socket that accepts options, but all of them expose its descriptor.
        same = socket.socket(fileno=connection.fileno())
        try:
            if same.family in (socket.AF_INET, socket.AF_INET6):
                milliseconds = int(min(max(seconds * 1000, 1), 2**31 - 1))
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        finally:
            same.detach()
