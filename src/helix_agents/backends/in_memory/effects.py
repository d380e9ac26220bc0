"""The ledger of tool calls that must not run twice."""

from helix_agents.backends.in_memory.handle import Handle, own, own_json
from helix_agents.backends.in_memory.pending import find_call, put_call
from helix_agents.backends.in_memory.rows import current_run, session_row
from helix_agents.backends.in_memory.staging import stage
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
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
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import check_fence


def _begun(tx: Transaction, session_id: SessionId, tool_call_id: ToolCallId) -> Effect:
    session_row(tx.tables, session_id)
    return begun(tx.tables.effects.get(session_id, {}).get(tool_call_id), session_id, tool_call_id)


def _put(tx: Transaction, effect: Effect | None) -> None:
    if effect is not None:
        tx.put(tx.within(tx.tables.effects, effect.session_id), effect.tool_call_id, effect)


def _consume_answer(tx: Transaction, session_id: SessionId, tool_call_id: ToolCallId) -> None:
    call = find_call(tx.tables, session_id, tool_call_id)
    row = None if call is None else consume(call, tx.now)
    if row is not None:
        put_call(tx, row)


class InMemoryEffects(Handle):
    """The facet `Effects`."""

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        door.check_effect(request)
        request = own(request)
        session_id, tool_call_id = request.session_id, request.tool_call_id
        async with self._writing("begin_effect") as tx:
            check_fence(session_id, current_run(tx.tables, session_id), request.fence)
            stage(tx, session_id, request.stage)
            existing = tx.tables.effects.get(session_id, {}).get(tool_call_id)
            effect, outcome = begin(existing, request, tx.now)
            _put(tx, effect)
            if request.consume_answer and isinstance(outcome, EffectBegun):
                _consume_answer(tx, session_id, tool_call_id)
        return own(outcome)

    async def renew_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, lease_ms: int
    ) -> FinishOutcome:
        async with self._writing("renew_effect") as tx:
            effect, outcome = renew(_begun(tx, session_id, tool_call_id), owner, lease_ms, tx.now)
            _put(tx, effect)
        return own(outcome)

    async def finish_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, result: JSON
    ) -> FinishOutcome:
        result = own_json(result)
        async with self._writing("finish_effect") as tx:
            effect, outcome = finish(_begun(tx, session_id, tool_call_id), owner, result, tx.now)
            _put(tx, effect)
        return own(outcome)

    async def list_effects(self, session_id: SessionId) -> tuple[Effect, ...]:
        with self._reading() as tables:
            session_row(tables, session_id)
            effects = oldest_first(tables.effects.get(session_id, {}).values())
        return tuple(own(effect) for effect in effects)
