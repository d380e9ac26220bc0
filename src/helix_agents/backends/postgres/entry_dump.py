"""Some scopes of a namespace in Postgres at one revision, batch by batch, unaffected by later writes."""

from collections.abc import AsyncIterator, Sequence

from helix_agents.backends.entry_columns import ENTRY, VERSION, entry_of
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.database import View
from helix_agents.backends.postgres.entry_rows import find_head
from helix_agents.domain.entries import Entry

BATCH_KEYS = 500
BATCH_BYTES = 4_000_000
# As many keys as fit into a batch, and at least one. A deleted key has no weight but is included too.
_KEYS = f"""
SELECT key FROM (
    SELECT key, sum(size + history_bytes) OVER (ORDER BY key) - size - history_bytes AS weighs
    FROM (
        SELECT key, size, history_bytes FROM __agents_entries
        WHERE namespace = ? AND scope = ? AND key > ? ORDER BY key LIMIT {BATCH_KEYS}
    ) AS batch
) AS weighed WHERE weighs <= {BATCH_BYTES}
"""


class PostgresDump:
    """A dump on a view of its own, unaffected by later writes."""

    def __init__(self, view: View, namespace: str, scopes: Sequence[str], revision: int) -> None:
        self._view = view
        self._namespace = namespace
        self._scopes = tuple(scopes)
        self.revision = revision

    @classmethod
    async def begin(cls, view: View, namespace: str, scopes: Sequence[str]) -> "PostgresDump":
        """Read the namespace's revision, which is the one the dump shows."""
        head = await view.ask(lambda connection: find_head(connection, namespace))
        return cls(view, namespace, scopes, head.revision if head is not None else 0)

    async def rows(self) -> AsyncIterator[Sequence[Entry]]:
        for scope in self._scopes:
            after = ""
            while batch := await self._batch(scope, after):
                yield batch
                after = batch[-1].key

    async def _batch(self, scope: str, after: str) -> list[Entry]:
        """Some keys, each with all its versions, the present one last."""

        async def work(connection: Connection) -> list[Entry]:
            keys = [row[0] for row in await connection.all(_KEYS, (self._namespace, scope, after))]
            if not keys:
                return []
            found = await connection.all(
                f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ?1 AND scope = ?2 AND key = ANY(?3)"
                f" UNION ALL SELECT {VERSION} FROM __agents_entry_versions"
                " WHERE namespace = ?1 AND scope = ?2 AND key = ANY(?3)",
                (self._namespace, scope, keys),
            )
            return sorted(map(entry_of, found), key=lambda entry: (entry.key, entry.version))

        return await self._view.ask(work)
