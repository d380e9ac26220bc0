"""What every facet of the store shares: the file, the namespace, the clock and the limits."""

from helix_agents.backends.part import StorePart
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.state_writes import StateWrites
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import StoreLimits


class Facet(StorePart[Database]):
    """One facet of a store on an open file."""

    def __init__(self, database: Database, *, namespace: str, limits: StoreLimits, clock: Clock) -> None:
        super().__init__(database, namespace=namespace, limits=limits, clock=clock)
        self._state_writes = StateWrites(limits.state_bytes)
        database.on_rollback(self._state_writes.forget)
