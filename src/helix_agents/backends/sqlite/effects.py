"""The effect ledger in SQLite."""

from collections.abc import Iterable

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.pending import find_call, save_call
from helix_agents.backends.sqlite.rows import load_session
from helix_agents.backends.sqlite.runs import current_run
from helix_agents.backends.sqlite.staging import stage
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
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.pending import consume
from helix_agents.domain.records import JSON, decode, encode
from helix_agents.domain.runs import check_fence


def find_effect(connection: Connection, namespace: str, session_id: SessionId, call_id: ToolCallId) -> Effect | None:
    """The ledger's entry for a call, or None."""
    row = connection.one(
        "SELECT body FROM __agents_effects WHERE namespace = ? AND session_id = ? AND tool_call_id = ?",
        (namespace, session_id, call_id),
    )
    return decode(row[0], Effect) if row is not None else None


def save_effect(connection: Connection, namespace: str, effect: Effect) -> None:
    """Store an entry in its present form."""
    connection.execute(
        "INSERT INTO __agents_effects (namespace, session_id, tool_call_id, state, body) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, session_id, tool_call_id) DO UPDATE SET state = excluded.state, body = excluded.body",
        (namespace, effect.session_id, effect.tool_call_id, effect.state, encode(effect).decode()),
    )


def forget_effects(
    connection: Connection, namespace: str, session_id: SessionId, call_ids: Iterable[ToolCallId]
) -> None:
    """Remove entries whose results are in the transcript."""
    for call_id in call_ids:
        connection.execute(
            "DELETE FROM __agents_effects WHERE namespace = ? AND session_id = ? AND tool_call_id = ?",
            (namespace, session_id, call_id),
        )


def forget_every_effect(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Remove all of a session's entries: they belong to the abandoned history, and their call ids may come again."""
    connection.execute("DELETE FROM __agents_effects WHERE namespace = ? AND session_id = ?", (namespace, session_id))


class SQLiteEffects(Facet):
    """The ledger of tool calls that must not run twice."""

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        check_effect(request)
        self._check_staged(request.session_id, request.stage)
        now = self._clock.now_ms()

        def work(connection: Connection) -> EffectOutcome:
            row = load_session(connection, self._namespace, request.session_id)
            check_fence(row.session_id, current_run(connection, row), request.fence)
            existing = find_effect(connection, self._namespace, row.session_id, request.tool_call_id)
            stored, outcome = begin(existing, request, now)
            if request.stage:
                stage(connection, row, request.stage, now)
            if stored is not None:
                save_effect(connection, self._namespace, stored)
            if request.consume_answer and isinstance(outcome, EffectBegun):
                self._consume_answer(connection, row.session_id, request.tool_call_id, now)
            return outcome

        return await self._db.write(work)

    async def renew_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, lease_ms: int
    ) -> FinishOutcome:
        now = self._clock.now_ms()

        def work(connection: Connection) -> FinishOutcome:
            effect = self._begun(connection, session_id, tool_call_id)
            return self._stored(connection, *renew(effect, owner, lease_ms, now))

        return await self._db.write(work)

    async def finish_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, result: JSON
    ) -> FinishOutcome:
        now = self._clock.now_ms()

        def work(connection: Connection) -> FinishOutcome:
            effect = self._begun(connection, session_id, tool_call_id)
            return self._stored(connection, *finish(effect, owner, result, now))

        return await self._db.write(work)

    async def list_effects(self, session_id: SessionId) -> tuple[Effect, ...]:
        def work(connection: Connection) -> tuple[Effect, ...]:
            load_session(connection, self._namespace, session_id)
            rows = connection.all(
                "SELECT body FROM __agents_effects WHERE namespace = ? AND session_id = ? ORDER BY key",
                (self._namespace, session_id),
            )
            return oldest_first(decode(row[0], Effect) for row in rows)

        return await self._db.read_by_key(work)

    def _begun(self, connection: Connection, session_id: SessionId, call_id: ToolCallId) -> Effect:
        load_session(connection, self._namespace, session_id)
        return begun(find_effect(connection, self._namespace, session_id, call_id), session_id, call_id)

    def _stored(self, connection: Connection, effect: Effect | None, outcome: FinishOutcome) -> FinishOutcome:
        if effect is not None:
            save_effect(connection, self._namespace, effect)
        return outcome

    def _consume_answer(self, connection: Connection, owner: SessionId, call_id: ToolCallId, now: int) -> None:
        call = find_call(connection, self._namespace, owner, call_id)
        consumed = consume(call, now) if call is not None else None
        if consumed is not None:
            save_call(connection, self._namespace, consumed)
