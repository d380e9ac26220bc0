"""Tools that must not run twice on a store whose answers get lost, and tries that come too late."""

import asyncio
from typing import Any

import msgspec
import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.failures import OutcomeUnknown
from helix_agents.agent.tools import tool
from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, InMemoryUsageStore, Memory
from helix_agents.domain.effects import BeginEffect, EffectOutcome, FinishOutcome
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import Fence
from helix_agents.engine.services import EngineOptions
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import SESSION, Gate, completed
from tests.recovery.deaths import settings_on

LEASE_MS = 1_000


class Answers(InMemoryStateStore):
    """A store that loses the answer to one operation: what was asked for is done, and nobody is told.

    It can be held once: when an intent is stored and nobody knows of it yet, or when a result is about to be.
    """

    lose: str | None = None
    held: tuple[str, Gate] | None = None

    async def _hold(self, operation: str) -> None:
        if self.held is not None and self.held[0] == operation:
            gate, self.held = self.held[1], None
            await gate.wait()

    def _lost(self, operation: str) -> None:
        if self.lose == operation:
            self.lose = None
            raise StoreUnavailableError("memory", "the answer was lost")

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        outcome = await super().begin_effect(request)
        await self._hold("begin_effect")
        self._lost("begin_effect")
        return outcome

    async def finish_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, result: JSON
    ) -> FinishOutcome:
        await self._hold("finish_effect")
        outcome = await super().finish_effect(session_id, tool_call_id, owner, result)
        self._lost("finish_effect")
        return outcome


class SlowRenewals(Answers):
    """A store in which a sign of life takes until its call was given up."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.gate = Gate()

    async def renew_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, lease_ms: int
    ) -> FinishOutcome:
        if lease_ms:
            await self.gate.wait()
        renewed = await super().renew_effect(session_id, tool_call_id, owner, lease_ms)
        if not lease_ms:
            self.gate.opened.set()
            # Whoever waits there has its turn now.
            await asyncio.sleep(0.01)
        return renewed


class Payments:
    """A tool that must not run twice, and can be held."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate: Gate | None = None

    def agent(self) -> Agent[Any, str, Any]:
        @tool(effect="once")
        async def pay() -> str:
            """Pay."""
            self.runs += 1
            if self.gate is not None:
                await self.gate.wait()
            return "paid"

        return Agent(name="payer", model=ScriptedModel([call("pay"), "Done."]), tools=[pay])


def executor(memory: Memory, store: Answers) -> Executor:
    return Executor(
        state=store,
        streams=InMemoryStreamManager(memory),
        usage=InMemoryUsageStore(memory),
        janitor_seconds=None,
        lease_ms=3_600_000,
        grace=0.1,
        options=EngineOptions(effect_lease_ms=LEASE_MS),
    )


@pytest.mark.parametrize("operation", ["begin_effect", "finish_effect"])
async def test_an_answer_of_the_ledger_that_is_lost_is_asked_for_again(operation: str):
    memory, payments = Memory(), Payments()
    store = Answers(memory)
    async with executor(memory, store) as helix:
        store.lose = operation
        run = await helix.execute(payments.agent(), "Pay.", SESSION)
        assert await completed(run) == "Done."
        [record] = (await helix.sessions.runs(SESSION)).items
        assert (payments.runs, record.attempt) == (1, 1)


@pytest.mark.parametrize(
    ("operation", "expected"), [("begin_effect", "unknown"), ("finish_effect", "done")], ids=["announcing", "recording"]
)
async def test_who_leaves_while_the_ledger_answers_keeps_nobody_waiting(operation: str, expected: str):
    memory, payments, gate = Memory(), Payments(), Gate()
    store = Answers(memory)
    async with executor(memory, store) as helix:
        store.held = operation, gate
        await helix.execute(payments.agent(), "Pay.", SESSION)
        await gate.until_reached()
    assert await found_by_another(store) == expected


async def test_a_sign_of_life_on_its_way_does_not_take_back_that_a_call_was_given_up():
    memory, payments = Memory(), Payments()
    payments.gate = Gate()
    store = SlowRenewals(memory)
    async with executor(memory, store) as helix:
        await helix.execute(payments.agent(), "Pay.", SESSION)
        await store.gate.until_reached()
    assert await found_by_another(store) == "unknown"


async def found_by_another(store: Answers) -> str:
    """What is known of the call to whoever comes next."""
    [left] = await store.list_effects(SESSION)
    fence = Fence(run_id=(await store.list_runs(SESSION)).items[0].run_id, attempt=1)
    asked = await store.begin_effect(
        BeginEffect(
            session_id=SESSION,
            fence=fence,
            tool_call_id=left.tool_call_id,
            tool_name="pay",
            idempotency_key=left.idempotency_key,
            owner="another",
            lease_ms=LEASE_MS,
        )
    )
    return asked.effect.state


async def test_a_call_that_its_tool_gave_up_is_not_taken_again_by_a_late_renewal(monkeypatch: pytest.MonkeyPatch):
    renewing, gave_up = asyncio.Event(), asyncio.Event()

    @tool(effect="once", unknown_outcome="fail")
    async def send() -> str:
        """Send something, and hear nothing."""
        await renewing.wait()
        raise OutcomeUnknown("nobody answers")

    agent = Agent(name="sender", model=ScriptedModel([call("send"), "So be it."]), tools=[send])
    async with await open_backend("memory://given-up-late", clock=ManualClock()) as parts, asyncio.timeout(10):
        renew = parts.state.renew_effect

        async def renew_late(session_id: str, call_id: str, owner: str, lease_ms: int) -> FinishOutcome:
            if lease_ms:
                renewing.set()
                await gave_up.wait()
            renewed = await renew(session_id, call_id, owner, lease_ms)
            gave_up.set()
            for _ in range(0 if lease_ms else 10):
                # The answer takes its time.
                await asyncio.sleep(0)
            return renewed

        monkeypatch.setattr(parts.state, "renew_effect", renew_late)
        settings = {**settings_on(parts, agent), "options": EngineOptions(effect_lease_ms=30)}
        async with Executor(**settings) as helix:
            assert await (await helix.execute(agent, "Go.", SESSION)).output() == "So be it."


class SetBack(InMemoryStateStore):
    """A store whose clock was set back by an hour after somebody had announced a call, and died."""

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        if not await self.list_effects(request.session_id):
            dead = {"owner": "dead", "lease_ms": request.lease_ms + 3_600_000}
            await super().begin_effect(msgspec.structs.replace(request, **dead))
        return await super().begin_effect(request)


async def test_nobody_waits_for_a_clock_that_was_set_back_to_come_to_the_end_of_a_dead_ones_intent() -> None:
    sent: list[str] = []

    @tool(effect="once", unknown_outcome="fail")
    async def send() -> str:
        """Send a letter, which cannot be taken back."""
        sent.append("one more")
        return "sent"

    memory = Memory()
    agent = Agent(name="writer", model=ScriptedModel([call("send", {}, id="c-1"), "Well."]), tools=[send])
    parts = {"streams": InMemoryStreamManager(memory), "usage": InMemoryUsageStore(memory)}
    store = SetBack(memory)
    async with (
        asyncio.timeout(10),
        Executor(state=store, **parts, janitor_seconds=None, options=EngineOptions(effect_lease_ms=20)) as helix,
    ):
        assert await (await helix.execute(agent, "Write to her.", SESSION)).output() == "Well."
    [told] = [row.message for row in await store.load_transcript(SESSION) if isinstance(row.message, ToolMessage)]
    assert (told.code, sent) == ("outcome_unknown", [])
