"""A message for the run in progress is heard once, whatever happens to the processes that send it and take it in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.ports.backend import open_backend
from helix_agents.testing import call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import NO_GRACE, Gate, completed, interrupted, lines, within
from helix_agents.testing.recording import Side, StopAt, prove_replayable
from helix_agents.testing.workers import Processes
from tests.recovery import conversation_jobs, reference_steering
from tests.recovery.deaths import settings_on
from tests.recovery.lives import Conversation, Life
from tests.recovery.reference_conversation import Traces
from tests.recovery.reference_steering import AGENT, SESSION, check_end, go_on

CONVERSATION = Conversation(agents=[AGENT], go_on=go_on, check_end=check_end)
EFFECTS = ("open", "ask_model", "run_batch", "commit", "ask_model", "commit")
CUTS = [StopAt(effect=number, side=side) for number in range(1, len(EFFECTS) + 1) for side in get_args(Side)]


async def test_where_nothing_happens_one_run_takes_all_messages_in(tmp_path: Path):
    life = Life(tmp_path, ManualClock(), CONVERSATION)
    recorder = await life.live()
    assert tuple(recorder.kinds) == EFFECTS
    assert await life.check() == set()
    for log in recorder.logs.values():
        await prove_replayable(log)
    async with await open_backend(f"sqlite:///{tmp_path / 'helix.db'}") as backend:
        [run] = (await backend.state.list_runs(SESSION)).items
        assert run.step_count == 2


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.side} {cut.effect} {EFFECTS[cut.effect - 1]}")
async def test_cut_at_an_effect_every_message_is_heard_once(tmp_path: Path, cut: StopAt):
    clock = ManualClock()
    first, second = Life(tmp_path, clock, CONVERSATION), Life(tmp_path, clock, CONVERSATION)
    stopped = await first.live(cut)
    assert stopped.has_stopped
    clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    await second.live()
    assert await second.check() == set()


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[conversation_jobs.MODULE, "helix_agents.backends.sqlite", "httpx2"]) as processes:
        yield processes


async def test_killed_at_any_statement_every_message_is_heard_once(tmp_path: Path, processes: Processes):
    def about(place: Path) -> dict[str, Any]:
        place.mkdir()
        url = f"sqlite:///{place / 'helix.db'}?synchronous=normal"
        return {"url": url, "traces": str(place / "traces"), "story": reference_steering.__name__}

    job = f"{conversation_jobs.MODULE}:converse"
    [whole] = await processes.run(job, [{**about(tmp_path / "whole"), "life": 0}])
    assert whole.error is None
    # A process that is left in peace may need a few statements less: the last ones are not killed at.
    statements = range(1, whole.value["statements"] - 10)
    for begin in range(0, len(statements), 8):
        ends = [(number, about(tmp_path / str(number))) for number in statements[begin : begin + 8]]
        killed = await processes.run(job, [{**end, "statement": number, "life": 0} for number, end in ends])
        assert [each.was_killed for each in killed] == [True] * len(ends), [each.error for each in killed]
        went_on = await processes.run(job, [{**end, "life": 1} for _, end in ends])
        assert [each.error for each in went_on] == [None] * len(ends)
        for _, end in ends:
            async with await open_backend(end["url"]) as backend:
                assert await check_end(backend, Traces(Path(end["traces"]))) == set()


async def test_a_message_that_is_taken_in_just_before_its_sender_stops_the_run_is_answered_by_the_run_that_continues(
    monkeypatch: pytest.MonkeyPatch,
):
    gates = [Gate(), Gate()]

    @tool
    async def work(at: int) -> str:
        """Work."""
        await gates[at].wait()
        return "worked"

    script = [call("work", {"at": 0}), call("work", {"at": 1}), "Tea it is."]
    agent = Agent(name="clerk", model=ScriptedModel(script), tools=[work])
    async with (
        await open_backend("memory://just-before") as parts,
        Executor(**settings_on(parts, agent), options=NO_GRACE) as helix,
    ):
        first = await helix.execute(agent, "Begin", "s-1")
        await gates[0].until_reached()
        await helix.execute(agent, "Tea", "s-1", if_running="steer", idempotency_key="tea")
        stop = helix._turns._stop

        async def late(session_id: str) -> object:
            # Between the refusal of the start and the stop, the run takes the message in and goes on.
            gates[0].opened.set()
            await gates[1].until_reached()
            return await stop(session_id)

        monkeypatch.setattr(helix._turns, "_stop", late)
        now = await within(helix.execute(agent, "Tea", "s-1", if_running="interrupt", idempotency_key="tea"))
        await interrupted(first)
        assert now.run_id != first.run_id
        assert await completed(now) == "Tea it is."
        said = lines(stored.message for stored in await parts.state.load_transcript("s-1"))
        assert said.count("user: Tea") == 1
        assert [run.status for run in (await parts.state.list_runs("s-1")).items] == ["completed", "interrupted"]
