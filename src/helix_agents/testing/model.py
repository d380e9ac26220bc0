"""A machine that plays random histories against a store and against the reference, and compares all that is visible.

Both stores share one clock, so their answers may differ in nothing but the checkpoint ids they mint.
"""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.commits import SettleSession, StartRun, StepCommit
from helix_agents.domain.errors import HelixError, StaleStateError
from helix_agents.domain.pending import PendingFilter, SubmitAnswer, ToolAnswer
from helix_agents.domain.runs import Fence, RunUpdate
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.writes import Append, Delete, Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.observation import ALL_STATES, observe, plain
from helix_agents.testing.scenes import asked, child_ref, effect, said, step_meta, waiting

Act: TypeAlias = Callable[[SessionStateStore], Awaitable[Any]]

PARENTS = {"a": None, "b": None, "c": None, "a-1": "a", "a-1-1": "a-1"}
"""The only session ids there are, so that histories meet; two of them are children when they are made."""

SESSIONS = st.sampled_from(list(PARENTS))
CALLS = st.sampled_from(["call-1", "call-2"])
OWNERS = st.sampled_from(["worker-1", "worker-2"])
STEPS = st.sampled_from([1, 2])
STATUSES = st.sampled_from(["active", "completed", "failed", "interrupted", "paused"])
VALUES = st.sampled_from([None, 0, 1, "text", [1], {"é": [None]}, 2**70])
KEYS = st.sampled_from(["list", "x", "y"])
WHO = st.none() | CALLS
OPS = st.one_of(
    st.builds(Append, key=st.just("list"), items=st.lists(VALUES, max_size=2), tool_call_id=WHO),
    st.builds(Replace, key=KEYS, value=VALUES, tool_call_id=WHO),
    st.builds(Delete, key=KEYS, tool_call_id=WHO),
)
WRITES = st.builds(StepWrites, ops=st.lists(OPS, max_size=3).map(tuple))
MESSAGES = st.lists(st.sampled_from([said("hello"), said("日本語"), asked("call-1")]), max_size=2).map(tuple)
LATENESS = st.sampled_from([0, 1])
"""How outdated a fence or a version is: mostly not at all."""


class StoreMachine(RuleBasedStateMachine):
    """Plays one history on the store under test and on the reference."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._clock = ManualClock()
        self._names = itertools.count(1)
        self._reference = InMemoryStateStore(clock=self._clock)
        self._tested: SessionStateStore = self._runner.run(_opened(self.open_tested(clock=self._clock)))
        self._touched: set[str] = set()

    def open_tested(self, **options: Any) -> SessionStateStore | Awaitable[SessionStateStore]:
        """Yours to give: an empty store, on the clock among the options."""
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self._touched.update(PARENTS)
            self.both_show_the_same()
        finally:
            self._runner.run(self._tested.close())
            self._runner.close()

    def both(self, sessions: Iterable[str], act: Act) -> None:
        """Do it on both stores; the answers, or the refusals, are the same."""
        self._touched.update(sessions)
        expected = self._runner.run(_outcome(self._reference, act))
        found = self._runner.run(_outcome(self._tested, act))
        _assert_same(found, expected)

    @invariant()
    def both_show_the_same(self) -> None:
        """Everything visible of the sessions that the last rule touched is the same."""
        touched = sorted(self._touched)
        self._touched.clear()
        expected = self._runner.run(_visible(self._reference, touched))
        found = self._runner.run(_visible(self._tested, touched))
        _assert_same(found, expected)

    def _new_run(self) -> str:
        return f"r-{next(self._names)}"

    # -- sessions -------------------------------------------------------------------------------------------

    @initialize(messages=MESSAGES)
    def begin_with_a_run(self, messages: Any) -> None:
        self.start("a", messages, StepWrites(), set(), None, None, 0)

    @rule(session=SESSIONS, state=st.dictionaries(KEYS, VALUES, max_size=2), user=st.none() | st.just("ann"))
    def create(self, session: str, state: dict[str, Any], user: str | None) -> None:
        options = CreateSession(
            custom_state=state, user_id=user, tags=("t",) if user else (), parent_session_id=PARENTS[session]
        )
        self.both([session], lambda store: _create(store, session, options))

    @rule(session=SESSIONS)
    def delete(self, session: str) -> None:
        self.both(PARENTS, lambda store: store.delete_session(session))

    @rule(session=SESSIONS, state=st.dictionaries(KEYS, VALUES, max_size=2), status=STATUSES, late=LATENESS)
    def save(self, session: str, state: dict[str, Any], status: Any, late: int) -> None:
        async def act(store: SessionStateStore) -> Any:
            loaded = await store.load_state(session)
            record = replace(loaded, custom_state=state, status=status, output=state, error="e" if late else None)
            return await store.save_state(session, record, expected_version=loaded.version - late)

        self.both([session], act)

    @rule(session=SESSIONS, writes=WRITES)
    def merge(self, session: str, writes: StepWrites) -> None:
        self.both([session], lambda store: store.merge_custom_state(session, writes))

    @rule(session=SESSIONS, expected=STATUSES, status=STATUSES)
    def compare_and_set(self, session: str, expected: Any, status: Any) -> None:
        self.both([session], lambda store: store.compare_and_set_status(session, (expected,), status, error="e"))

    @rule(session=SESSIONS, value=st.none() | st.just("v"))
    def count_and_patch(self, session: str, value: str | None) -> None:
        async def act(store: SessionStateStore) -> Any:
            return (
                await store.increment_step_count(session),
                await store.increment_resume_count(session),
                await store.patch_metadata(session, {"k": value}),
            )

        self.both([session], act)

    # -- messages and lineage -------------------------------------------------------------------------------

    @rule(session=SESSIONS, messages=MESSAGES)
    def append(self, session: str, messages: Any) -> None:
        self.both([session], lambda store: store.append_messages(session, messages))

    @rule(session=SESSIONS, count=st.integers(0, 4))
    def truncate(self, session: str, count: int) -> None:
        self.both(PARENTS, lambda store: store.truncate_messages(session, count))

    @rule(source=SESSIONS, copy=SESSIONS, at=st.sampled_from(["end", "message", "checkpoint"]), n=st.integers(0, 4))
    def branch(self, source: str, copy: str, at: str, n: int) -> None:
        async def act(store: SessionStateStore) -> Any:
            point = BranchPoint(from_session_id=source)
            if at == "message":
                point = replace(point, message_count=n)
            elif at == "checkpoint":
                point = replace(point, checkpoint_id=await _checkpoint(store, source, n))
            return await store.clone_session(point, copy)

        self.both([source, copy], act)

    @rule(session=SESSIONS, step=STEPS)
    def checkpoint(self, session: str, step: int) -> None:
        self.both([session], lambda store: store.create_checkpoint(session, step_meta(step)))

    # -- runs -----------------------------------------------------------------------------------------------

    @rule(
        session=SESSIONS,
        messages=MESSAGES,
        writes=WRITES,
        flags=st.sets(st.sampled_from(["keep_step_count", "keep_suspension", "abandon_pending", "count_resume"])),
        rewind=st.none() | st.none() | st.integers(0, 3),
        owner=st.none() | OWNERS,
        late=LATENESS,
    )
    def start(
        self,
        session: str,
        messages: Any,
        writes: StepWrites,
        flags: set[str],
        rewind: int | None,
        owner: str | None,
        late: int,
    ) -> None:
        run_id = self._new_run()

        async def act(store: SessionStateStore) -> Any:
            request = StartRun(
                session_id=session,
                run_id=run_id,
                append_messages=messages,
                writes=writes,
                owner=owner,
                **dict.fromkeys(flags, True),  # pyright: ignore[reportArgumentType]  # all of them are booleans
            )
            if not await store.session_exists(session):
                return await store.start_run(replace(request, create=CreateSession(parent_session_id=None)))
            loaded, current = await store.load_state(session), await store.get_current_run(session)
            if rewind is not None:
                request = replace(request, rewind_to=await _checkpoint(store, session, rewind))
            return await store.start_run(
                replace(
                    request, expected_version=loaded.version - late, expected_run=current.fence if current else None
                )
            )

        self.both(PARENTS, act)

    @rule(session=SESSIONS, owner=st.none() | OWNERS, late=LATENESS)
    def claim(self, session: str, owner: str | None, late: int) -> None:
        async def act(store: SessionStateStore) -> Any:
            return await store.claim_run(session, await _fence(store, session, late), owner)

        self.both([session], act)

    @rule(session=SESSIONS, status=st.sampled_from(["completed", "failed", "suspended_client_tool"]))
    def end_run(self, session: str, status: Any) -> None:
        async def act(store: SessionStateStore) -> Any:
            fence = await _fence(store, session)
            return await store.update_run_status(fence.run_id, status, RunUpdate(completion_reason="why"))

        self.both([session], act)

    @rule(owner=OWNERS, ttl=st.sampled_from([0, 5, 50]))
    def lease(self, owner: str, ttl: int) -> None:
        self.both([], lambda store: store.renew_lease(owner, ttl) if ttl else store.release_lease(owner))

    @rule(milliseconds=st.sampled_from([1, 10, 100]))
    def let_time_pass(self, milliseconds: int) -> None:
        self._clock.advance(milliseconds)

    # -- steps ----------------------------------------------------------------------------------------------

    @rule(
        session=SESSIONS,
        step=STEPS,
        messages=MESSAGES,
        writes=WRITES,
        pending=st.sets(CALLS, max_size=2),
        consume=st.sets(CALLS, max_size=1),
        how=st.sampled_from(["go on", "go on", "suspend", "complete", "fail"]),
        late=LATENESS,
    )
    def commit(
        self,
        session: str,
        step: int,
        messages: Any,
        writes: StepWrites,
        pending: set[str],
        consume: set[str],
        how: str,
        late: int,
    ) -> None:
        ends = {"suspend": "suspended_client_tool", "complete": "completed", "fail": "failed"}
        number = next(self._names) if not late else 0

        async def act(store: SessionStateStore) -> Any:
            loaded, fence = await store.load_state(session), await _fence(store, session)
            deadline = store.now_ms() + 5
            calls = [
                waiting(store, call, session, root_session_id=loaded.root_session_id, deadline=deadline)
                for call in sorted(pending)
            ]
            request = StepCommit(
                fence=fence,
                step=step,
                round=number,
                writes=writes,
                pending=tuple(calls),
                consume=tuple(consume),
                run=RunUpdate(status=ends.get(how)),  # pyright: ignore[reportArgumentType]  # a known status or None
                suspend=how == "suspend",
                drop_pending=how == "fail",
                take_stop=how == "complete",
                forget_effects=tuple(consume),
            )
            return await store.save_state_and_promote_staging(
                session,
                replace(loaded, step_count=loaded.step_count + 1),
                messages,
                step_meta(step, fence.run_id),
                commit=request,
            )

        self.both(PARENTS, act)

    @rule(session=SESSIONS, step=STEPS, state=st.dictionaries(KEYS, VALUES, max_size=2), messages=MESSAGES)
    def commit_plainly(self, session: str, step: int, state: dict[str, Any], messages: Any) -> None:
        async def act(store: SessionStateStore) -> Any:
            loaded, fence = await store.load_state(session), await _fence(store, session)
            return await store.save_state_and_promote_staging(
                session, replace(loaded, custom_state=state), messages, step_meta(step, fence.run_id)
            )

        self.both([session], act)

    @rule(session=SESSIONS, step=STEPS, call=CALLS, index=st.integers(0, 1), writes=WRITES)
    def stage(self, session: str, step: int, call: str, index: int, writes: StepWrites) -> None:
        async def act(store: SessionStateStore) -> Any:
            fence = await _fence(store, session)
            change = StagedChange(
                step_id=step_meta(step, fence.run_id).step_id, tool_call_id=call, index=index, writes=writes
            )
            return await store.stage_changes(session, change, fence=fence)

        self.both([session], act)

    @rule(session=SESSIONS, step=STEPS, how=st.sampled_from(["promote", "discard", "discard all"]))
    def settle_staging(self, session: str, step: int, how: str) -> None:
        async def act(store: SessionStateStore) -> Any:
            meta = step_meta(step, (await _fence(store, session)).run_id)
            if how == "promote":
                return await store.promote_staging(session, meta)
            return await store.discard_staging(session, None if how == "discard all" else meta.step_id)

        self.both([session], act)

    @rule(session=SESSIONS)
    def settle(self, session: str) -> None:
        request = SettleSession(session_id=session, expected=("active", "paused"), status="failed", error="expired")
        self.both(PARENTS, lambda store: store.settle_session(request))

    # -- what others write ----------------------------------------------------------------------------------

    @rule(session=SESSIONS, call=CALLS, result=VALUES)
    def submit(self, session: str, call: str, result: Any) -> None:
        submission = SubmitAnswer(session_id=session, tool_call_id=call, answer=ToolAnswer(result=result))
        self.both(PARENTS, lambda store: store.submit_answer(submission))

    @rule()
    def expire(self) -> None:
        self.both(PARENTS, lambda store: store.expire_pending())

    @rule(session=SESSIONS, how=st.sampled_from(["interrupt", "abort", "check", "clear"]))
    def stop(self, session: str, how: Any) -> None:
        acts: dict[str, Act] = {
            "check": lambda store: store.check_interrupt_flag(session),
            "clear": lambda store: store.clear_interrupt_flag(session),
        }
        self.both([session], acts.get(how, lambda store: store.set_interrupt_flag(session, how, kind=how)))

    @rule(session=SESSIONS, call=CALLS, owner=OWNERS, how=st.sampled_from(["begin", "rerun", "renew", "finish"]))
    def work(self, session: str, call: str, owner: str, how: str) -> None:
        async def act(store: SessionStateStore) -> Any:
            if how == "renew":
                return await store.renew_effect(session, call, owner, 5)
            if how == "finish":
                return await store.finish_effect(session, call, owner, {"by": owner})
            request = effect(
                call, owner, session_id=session, fence=await _fence(store, session), lease_ms=5, rerun=how == "rerun"
            )
            return await store.begin_effect(replace(request, consume_answer=True))

        self.both(PARENTS, act)

    @rule(session=SESSIONS, child=st.sampled_from(["child-1", "child-2"]), update=st.booleans())
    def refer(self, session: str, child: str, update: bool) -> None:
        change = SubSessionRefUpdate(sub_session_id=child, status="completed", result=[1])
        self.both(
            [session],
            lambda store: (
                store.update_sub_session_ref(session, change)
                if update
                else store.add_sub_session_refs(session, [child_ref(child)])
            ),
        )


async def _opened(opening: Any) -> SessionStateStore:
    return await opening if inspect.isawaitable(opening) else opening


async def _create(store: SessionStateStore, session: str, options: CreateSession) -> Any:
    parent = options.parent_session_id
    if parent is not None and not await store.session_exists(parent):
        options = replace(options, parent_session_id=None)
    return await store.create_session(session, options)


async def _fence(store: SessionStateStore, session: str, late: int = 0) -> Fence:
    run = await store.get_current_run(session)
    return Fence(run_id=run.run_id, attempt=run.attempt - late) if run else Fence(run_id="r-none")


async def _checkpoint(store: SessionStateStore, session: str, number: int) -> str:
    """The n-th newest checkpoint, or an id that is none."""
    page = await store.list_checkpoints(session, offset=number, limit=1)
    return page.items[0].checkpoint_id if page.items else "none"


async def _outcome(store: SessionStateStore, act: Act) -> Any:
    """What the act answered, or how it was refused, without the ids a store mints."""
    try:
        answer = await act(store)
    except StaleStateError as refusal:
        return type(refusal), refusal.args
    except HelixError as refusal:
        # Ids and sentences in a refusal are the store's own.
        return type(refusal)
    return await _named(store, answer)


async def _visible(store: SessionStateStore, sessions: Iterable[str]) -> Any:
    everything = {
        "sessions": await observe(store, *sessions),
        "listed": await store.list_sessions(),
        "pending": await store.list_pending(ALL_STATES),
        "waiting": await store.list_pending(PendingFilter(root_session_id="a")),
        "expired": await store.find_expired_pending(),
        "unresumed": await store.list_unresumed(1),
        "orphans": await store.list_orphans(),
    }
    return await _named(store, everything)


async def _named(store: SessionStateStore, answer: Any) -> Any:
    """Plain data, in which a checkpoint has a name that is the same in every store."""
    names = {
        checkpoint.checkpoint_id: f"{session} at {checkpoint.version}"
        for session in PARENTS
        for checkpoint in await _checkpoints(store, session)
    }
    return plain(answer, lambda text: names.get(text, text))


async def _checkpoints(store: SessionStateStore, session: str) -> tuple[Checkpoint, ...]:
    return (await store.list_checkpoints(session, limit=200)).items if await store.session_exists(session) else ()


def machine_settings() -> settings:
    """A fifth of the profile's examples, as each is a whole history."""
    profile = settings()
    return settings(profile, max_examples=max(10, profile.max_examples // 5), stateful_step_count=25, deadline=None)


def _assert_same(found: Any, expected: Any, where: str = "the answer") -> None:
    """Fail at the first difference and name the place: a comparison of everything at once says too much."""
    if isinstance(found, dict) and isinstance(expected, dict):
        ours, theirs = cast("dict[Any, Any]", found), cast("dict[Any, Any]", expected)
        assert ours.keys() == theirs.keys(), f"{where}: {sorted(ours)} is not {sorted(theirs)} as on the reference"
        for key in ours:
            _assert_same(ours[key], theirs[key], f"{where} / {key}")
    elif (
        isinstance(found, list)
        and isinstance(expected, list)
        and len(cast("list[Any]", found)) == len(cast("list[Any]", expected))
    ):
        for number, (one, other) in enumerate(zip(cast("list[Any]", found), cast("list[Any]", expected), strict=True)):
            _assert_same(one, other, f"{where} / {number}")
    else:
        assert found == expected, f"{where}: {found!r} is not {expected!r} as on the reference"
