"""Connections whose client takes no byte any more: the system drops them, where it knows how to."""

import socket
import sys
from contextlib import suppress
from typing import Any

from starlette.types import Receive


def drop_if_silent(receive: Receive, seconds: float) -> None:
    """Have the system drop the connection of a request when its client takes no byte for so long.

    A response can only end: what it has handed over already would keep the connection open until the client takes it.
    It works under servers that let an application see the connection, as uvicorn does.
    """
    if sys.platform != "linux":
        return
    transport: Any = getattr(getattr(receive, "__self__", None), "transport", None)
    connection = transport.get_extra_info("socket") if hasattr(transport, "get_extra_info") else None
    if connection is None:
        return
    with suppress(OSError, ValueError):
        # Not every event loop gives away a socket that can be told something; all of them tell its number.
        same = socket.socket(fileno=connection.fileno())
        try:
            if same.family in (socket.AF_INET, socket.AF_INET6):
                milliseconds = int(min(max(seconds * 1000, 1), 2**31 - 1))
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        finally:
            same.detach()
