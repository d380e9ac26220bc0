"""What a webhook is told of a talk, kept beside it: how every run ended, at least once, and nothing that is not so."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionFilter, SessionSummary
from helix_agents.domain.webhooks import event_of
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.receiver import Received, Receiver

# A run that was stopped may be given up for good; all others stay as they ended.
_BECOMES = {("turn.interrupted", "failed")}
LONGER_THAN_ANY_REST_MS = 900_000
MOST_ROUNDS = 30


class Ends:
    """The receiver of one talk, which refuses a message now and then, until the talk is over."""

    def __init__(self, parts: Backend, clock: ManualClock, random: Random) -> None:
        self._parts = parts
        self._clock = clock
        self._random = random
        self._refuses = 0.3
        self._receiver = Receiver(self._answer)
        self.webhooks: tuple[Webhook, ...] = ()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """While this lasts, whoever has these webhooks can tell them."""
        async with self._receiver:
            self.webhooks = (Webhook(self._receiver.url, secret=SECRET, name="ends"),)
            yield

    def _answer(self, _: Received) -> int:
        return 503 if self._random.random() < self._refuses else 204

    # -- what has to hold

    async def check(self) -> None:
        """Whatever was told is so."""
        await check_told(self._parts, self._receiver.received)

    async def check_end(self, look_after_everything: Callable[[], Awaitable[None]]) -> None:
        """The receiver takes everything now, and was told of every end, and of everything that waits."""
        self._refuses = 0.0
        for _ in range(MOST_ROUNDS):
            await look_after_everything()
            if not await _is_owed_any(self._parts):
                break
            self._clock.advance(LONGER_THAN_ANY_REST_MS)
        await check_all_told(self._parts, self._receiver.received)
        for session in (await self._parts.state.list_sessions(SessionFilter(), limit=200)).items:
            if session.parent_session_id is None:
                await self._check_stream(session)

    async def _check_stream(self, session: SessionSummary) -> None:
        """Readers of a conversation that is over do not wait for more."""
        run = await self._parts.state.get_current_run(session.session_id)
        stream = await self._parts.streams.get_stream_info(session.session_id)
        assert run is not None
        wanted = "paused" if run.status in SUSPENDED else "failed" if run.status == "failed" else "ended"
        found = None if stream is None else stream.status
        # If the store goes away in the middle of a stop of something that waits, the stream stays as it was until
        # somebody looks at the run.
        is_left = found == "paused" and run.status in ("interrupted", "failed")
        assert found == wanted or is_left, f"{session.session_id} {run.status}, and its stream is {found}"


async def check_heard(parts: Backend, receiver: Receiver) -> None:
    """A receiver of many stores was told of every end in this one."""
    received = [each for each in receiver.received if await parts.state.get_run(each.data["runId"]) is not None]
    await check_all_told(parts, received)


async def check_told(parts: Backend, received: Sequence[Received]) -> None:
    """Whatever was told is so, and the same goes by one name however often it is told."""
    about: dict[str, tuple[str, str]] = {}
    for told in received:
        run = await parts.state.get_run(told.data["runId"])
        assert run is not None, f"{told.data} is of no run"
        _check_told(told, run)
        assert about.setdefault(told.id, (run.run_id, told.type)) == (run.run_id, told.type)
    assert len(about) == len(set(about.values())), "the same was told under two names"


async def check_all_told(parts: Backend, received: Sequence[Received]) -> None:
    """Every end was told, and everything that waits; nothing is owed any more, and whatever was told is so."""
    assert not await _is_owed_any(parts), "the receiver is owed something for ever"
    await check_told(parts, received)
    told = {(each.data["runId"], each.type) for each in received}
    for session in (await parts.state.list_sessions(SessionFilter(), limit=200)).items:
        for run in (await parts.state.list_runs(session.session_id, limit=MAX_LIMIT)).items:
            if await _has_to_be_told(parts, session, run):
                about = f"{run.run_id} of {session.session_id} {run.status}, and nobody was told"
                assert (run.run_id, event_of(run.status)) in told, about


def _check_told(told: Received, run: RunRecord) -> None:
    assert run.status != "running", f"{run.run_id} goes on, and {told.type} was told"
    if told.type == "calls.waiting":
        # What waited may have been given up since; a run that has something left to do never completes.
        assert run.status != "completed", f"{run.run_id} completed, and {told.type} was told"
        assert told.data["calls"], "something waits, and nobody knows what"
    else:
        is_so = told.type == event_of(run.status) or (told.type, run.status) in _BECOMES
        assert is_so, f"{run.run_id} {run.status}, and {told.type} was told"
    if told.type == "turn.completed":
        assert told.data["output"] == run.output, f"{told.data} is not what {run.run_id} came to"


async def _is_owed_any(parts: Backend) -> bool:
    owed = await parts.state.list_deliveries(states=["owed"])
    return bool(await parts.state.list_untold(limit=1)) or bool(owed.total)


async def _has_to_be_told(parts: Backend, session: SessionSummary, run: RunRecord) -> bool:
    if run.status in SUSPENDED:
        state, where = parts.state, PendingFilter(session_id=run.session_id)
        waiting = await whole_list(lambda offset: state.list_pending(where, offset=offset, limit=MAX_LIMIT))
        return any(call.run_id == run.run_id for call in waiting)
    # In the turn of a rewind nothing is done, and the end of a child is told with that of its parent.
    return run.completion_reason != "rewound" and session.parent_session_id is None
