"""A client's connection to its agent server: routes and records, and the patience to wait for an instance."""

from collections.abc import AsyncGenerator
from typing import TypeVar

from helix_agents.domain.records import JSON
from helix_agents.server.patience import Patience
from helix_agents.server.remote_http import RemoteHttp
from helix_agents.server.remote_wire import Event, read_whole

T = TypeVar("T")


class Connection:
    """What all objects of one client share."""

    def __init__(
        self, http: RemoteHttp, *, patience: float, answer_seconds: float, silence_seconds: float, event_bytes: int
    ) -> None:
        self.http = http
        self._patience = patience
        self._answer_seconds = answer_seconds
        self._silence_seconds = silence_seconds
        self._event_bytes = event_bytes

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.http.url

    def patience(self) -> Patience:
        """The patience for one thing that a caller waits for."""
        return Patience(self._patience)

    async def ask(
        self, kind: type[T], method: str, path: str, body: dict[str, JSON] | None = None, *, waits: float = 0.0
    ) -> T:
        """A route's answer as a record; asks again while the server does not answer. A route that `waits` may take so
        many seconds longer.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: there is no usable answer.
        """
        return await self.patience().ask(lambda: self.ask_once(kind, method, path, body, waits=waits))

    async def ask_once(
        self, kind: type[T], method: str, path: str, body: dict[str, JSON] | None = None, *, waits: float = 0.0
    ) -> T:
        """Like `ask`, but a server that does not answer is not asked again."""
        seconds = self._answer_seconds + waits
        told = await self.http.ask(method, f"{self.url}{path}", body, {}, seconds=seconds)
        return self.http.read(lambda: read_whole(told, kind))

    def events(self, path: str) -> AsyncGenerator[Event, None]:
        """A route's server-sent events, until the server ends the response."""
        return self.http.events(f"{self.url}{path}", {}, silence=self._silence_seconds, most_bytes=self._event_bytes)
