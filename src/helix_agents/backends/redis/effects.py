"""The ledger of tool calls that must not run twice."""

from collections.abc import Callable

from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.pending import find_call, put_call
from helix_agents.backends.redis.rows import (
    EffectRow,
    Session,
    every_effect,
    load_session,
    read_effects,
    save_session,
)
from helix_agents.backends.redis.staging import stage
from helix_agents.backends.redis.transaction import Known, Transaction
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
    renew,
)
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.pending import consume
from helix_agents.domain.records import JSON, decode, encode
from helix_agents.domain.runs import check_fence


async def _find(tx: Transaction, session_id: SessionId, tool_call_id: ToolCallId) -> EffectRow:
    """The entry of a call, or the position for a new one."""
    key = tx.slot.effects(session_id)
    row, count = await tx.read(("HGET", key, tool_call_id), ("HLEN", key))
    return decode(row, EffectRow) if row is not None else EffectRow(place=count)


def _put(tx: Transaction, known: Known[Session], place: int, effect: Effect | None) -> None:
    if effect is not None:
        row = EffectRow(place=place, effect=effect)
        tx.do("HSET", tx.slot.effects(effect.session_id), effect.tool_call_id, encode(row))
        save_session(tx, known)


def forget_effects(tx: Transaction, known: Known[Session], ids: tuple[ToolCallId, ...]) -> None:
    """Remove entries of the ledger."""
    if ids:
        tx.do_with_all("HDEL", tx.slot.effects(known.value.record.session_id), ids)
        save_session(tx, known)


class RedisEffects(Facet):
    """The facet `Effects`."""

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        door.check_effect(request)
        session_id, tool_call_id = request.session_id, request.tool_call_id

        async def work(tx: Transaction) -> EffectOutcome:
            known = await load_session(tx, session_id)
            check_fence(session_id, known.value.run, request.fence)
            stage(tx, known, request.stage)
            existing = await _find(tx, session_id, tool_call_id)
            effect, outcome = begin(existing.effect, request, tx.now)
            _put(tx, known, existing.place, effect)
            if request.consume_answer and isinstance(outcome, EffectBegun):
                call = await find_call(tx, session_id, tool_call_id)
                row = None if call is None else consume(call, tx.now)
                if row is not None:
                    await put_call(tx, row)
            return outcome

        return await self._write("begin_effect", session_id, work)

    async def renew_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, lease_ms: int
    ) -> FinishOutcome:
        return await self._settle(
            "renew_effect", session_id, tool_call_id, lambda effect, now: renew(effect, owner, lease_ms, now)
        )

    async def finish_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, result: JSON
    ) -> FinishOutcome:
        return await self._settle(
            "finish_effect", session_id, tool_call_id, lambda effect, now: finish(effect, owner, result, now)
        )

    async def list_effects(self, session_id: SessionId) -> tuple[Effect, ...]:
        async def work(tx: Transaction) -> tuple[Effect, ...]:
            tx.bring(every_effect(tx, session_id))
            await load_session(tx, session_id)
            return await read_effects(tx, session_id)

        return await self._read("list_effects", session_id, work)

    async def _settle(
        self,
        what: str,
        session_id: SessionId,
        tool_call_id: ToolCallId,
        change: Callable[[Effect, int], tuple[Effect | None, FinishOutcome]],
    ) -> FinishOutcome:
        async def work(tx: Transaction) -> FinishOutcome:
            known = await load_session(tx, session_id)
            existing = await _find(tx, session_id, tool_call_id)
            effect, outcome = change(begun(existing.effect, session_id, tool_call_id), tx.now)
            _put(tx, known, existing.place, effect)
            return outcome

        return await self._write(what, session_id, work)
