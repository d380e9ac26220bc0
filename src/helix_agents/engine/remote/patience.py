"""Patience with a service that does not answer."""

from helix_agents.engine.scope import RunScope


class Patience:
    """How long to keep asking a service that does not answer."""

    def __init__(self, scope: RunScope, lost_after_ms: int) -> None:
        self._services = scope.services
        self._lost_after_ms = lost_after_ms
        self._since: int | None = None
        self._wait = 0.1

    def contact(self) -> None:
        """The service has answered."""
        self._since = None

    def progress(self) -> None:
        """The service has said something new."""
        self._since, self._wait = None, 0.1

    async def ran_out(self) -> bool:
        """Whether the service has been silent for too long; waits a while if not."""
        now = self._services.clock.now_ms()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._lost_after_ms:
            return True
        await self.pause()
        return False

    async def pause(self) -> None:
        """Wait, longer each time."""
        await self._services.sleep(self._wait * self._services.jitter())
        self._wait = min(self._wait * 2, 2.0)
