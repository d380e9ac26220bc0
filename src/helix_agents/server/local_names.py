"""A server without tokens on this machine alone: only pages that reach it under a name of this machine get in.

A page of another site cannot read from such a server, unless its site gives its own name the address of its reader's
machine. To the browser, the server then is that site; but each request still says the name.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from helix_agents.server.errors import RefusedError, refused


def is_local(host: str | None) -> bool:
    """Whether a host, without its port, is this machine under any name that no site can have."""
    if host is None:
        return False
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class LocalNames:
    """An application that is only reached under names of this machine, and those of the sites whose pages may call."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._anyone = "*" in origins
        self._hosts = {urlsplit(origin).hostname for origin in origins} - {None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = next((value for name, value in scope.get("headers", ()) if name == b"host"), None)
        if scope["type"] != "http" or named is None or self._anyone or self._knows(named.decode("latin-1")):
            await self._app(scope, receive, send)
            return
        why = "This server lets everybody in, but only on its own machine; name your site with --cors-origin."
        await refused(RefusedError(403, "forbidden", why))(scope, receive, send)

    def _knows(self, named: str) -> bool:
        try:
            host = urlsplit(f"//{named}").hostname
        except ValueError:
            return False
        return is_local(host) or host in self._hosts
