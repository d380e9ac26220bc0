"""The effect ledger in Postgres."""

from collections.abc import Callable

from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.pending import find_call, save_calls
from helix_agents.backends.postgres.rows import load_session, lock_tree_of
from helix_agents.backends.postgres.runs import current_run
from helix_agents.backends.postgres.staging import stage
from helix_agents.domain.door import check_effect
from helix_agents.domain.effects import (
    BeginEffect,
    Effect,
    EffectBegun,
    EffectOutcome,
    FinishOutcome,
    begin,
    begun,
    finish,
    oldest_first,
    renew,
)
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.pending import consume
from helix_agents.domain.records import JSON, decode, encode
from helix_agents.domain.runs import check_fence


async def find_effect(
    connection: Connection, namespace: str, session_id: SessionId, call_id: ToolCallId
) -> Effect | None:
    """The ledger's entry for a call, or None."""
    row = await connection.one(
        "SELECT body FROM __agents_effects WHERE namespace = ? AND session_id = ? AND tool_call_id = ?",
        (namespace, session_id, call_id),
    )
    return decode(row[0], Effect) if row is not None else None


async def read_effects(connection: Connection, namespace: str, session_id: SessionId) -> list[Effect]:
    """The ledger's entries of a session."""
    rows = await connection.all(
        "SELECT body FROM __agents_effects WHERE namespace = ? AND session_id = ?", (namespace, session_id)
    )
    return [decode(row[0], Effect) for row in rows]


async def forget_every_effect(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Remove all of a session's entries: they belong to the abandoned history, and their call ids may come again."""
    await connection.execute(
        "DELETE FROM __agents_effects WHERE namespace = ? AND session_id = ?", (namespace, session_id)
    )


async def save_effect(connection: Connection, namespace: str, effect: Effect) -> None:
    """Store an entry in its present form."""
    await connection.execute(
        "INSERT INTO __agents_effects (namespace, session_id, tool_call_id, state, body) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, session_id, tool_call_id) DO UPDATE SET state = excluded.state, body = excluded.body",
        (namespace, effect.session_id, effect.tool_call_id, effect.state, encode(effect).decode()),
    )


class PostgresEffects(Facet):
    """The ledger of tool calls that must not run twice."""

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        check_effect(request)
        self._check_staged(request.session_id, request.stage)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> EffectOutcome:
            if request.consume_answer:
                await lock_tree_of(connection, self._namespace, request.session_id)
            row = await load_session(connection, self._namespace, request.session_id)
            check_fence(row.session_id, await current_run(connection, row), request.fence)
            existing = await find_effect(connection, self._namespace, row.session_id, request.tool_call_id)
            stored, outcome = begin(existing, request, now)
            if request.stage:
                await stage(connection, row, request.stage, now)
            if stored is not None:
                await save_effect(connection, self._namespace, stored)
            if request.consume_answer and isinstance(outcome, EffectBegun):
                await self._consume_answer(connection, row.session_id, request.tool_call_id, now)
            return outcome

        return await self._db.write(work)

    async def renew_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, lease_ms: int
    ) -> FinishOutcome:
        now = self._clock.now_ms()
        return await self._change_effect(session_id, tool_call_id, lambda effect: renew(effect, owner, lease_ms, now))

    async def finish_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, result: JSON
    ) -> FinishOutcome:
        now = self._clock.now_ms()
        return await self._change_effect(session_id, tool_call_id, lambda effect: finish(effect, owner, result, now))

    async def list_effects(self, session_id: SessionId) -> tuple[Effect, ...]:
        bodies = await self._bodies_of(session_id, "__agents_effects")
        return oldest_first(decode(body, Effect) for body in bodies)

    async def _change_effect(
        self,
        session_id: SessionId,
        call_id: ToolCallId,
        change: Callable[[Effect], tuple[Effect | None, FinishOutcome]],
    ) -> FinishOutcome:
        """Read the entry, decide, and store it if it is unchanged: two statements, with no lock between them."""
        while True:
            row = await self._db.one(
                "SELECT e.body FROM __agents_sessions s LEFT JOIN __agents_effects e ON e.namespace = s.namespace"
                " AND e.session_id = s.session_id AND e.tool_call_id = ? WHERE s.namespace = ? AND s.session_id = ?",
                (call_id, self._namespace, session_id),
            )
            if row is None:
                raise SessionNotFoundError(session_id)
            found = decode(row[0], Effect) if row[0] is not None else None
            stored, outcome = change(begun(found, session_id, call_id))
            if stored is None or await self._db.execute(
                "UPDATE __agents_effects SET state = ?, body = ?"
                " WHERE namespace = ? AND session_id = ? AND tool_call_id = ? AND body = ?",
                (stored.state, encode(stored).decode(), self._namespace, session_id, call_id, row[0]),
            ):
                return outcome

    async def _consume_answer(self, connection: Connection, owner: SessionId, call_id: ToolCallId, now: int) -> None:
        call = await find_call(connection, self._namespace, owner, call_id)
        consumed = consume(call, now) if call is not None else None
        if consumed is not None:
            await save_calls(connection, self._namespace, (consumed,))
