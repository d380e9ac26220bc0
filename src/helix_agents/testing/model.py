"""A state machine that plays random histories against a store and the reference, and compares everything visible.

Both stores share one clock, so their results may differ in nothing but the checkpoint ids that they generate.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.writes import NO_WRITES, Append, Delete, Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing import model_acts as acts
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.comparison import assert_same, everything_visible, outcome
from helix_agents.testing.contracts.handles import opened
from helix_agents.testing.model_acts import ENDS, PARENTS, Perform
from helix_agents.testing.scenes import asked, said

LIVELY = st.sampled_from(["a", "a", "a", "a-1", "a-1", "b", "b", "c", "d", "a-1-1"])
"""A few sessions get most of the acts, so that the acts interact."""

LATENESS = st.sampled_from([0, 0, 0, 0, 1])
"""How outdated a fence or a version is."""

PASSING = st.sampled_from([0, 0, 0, 0, 1, 5, 100])
"""Milliseconds that pass before an act; deadlines and leases are 5."""

CALLS = st.sampled_from(["call-1", "call-2"])
OWNERS = st.sampled_from(["worker-1", "worker-2"])
STEPS = st.sampled_from([1, 2])
STATUSES = st.sampled_from(["active", "completed", "failed", "interrupted", "paused"])
VALUES = st.sampled_from([None, 0, 1, True, 1.0, "text", [1], {"é": [None]}, 2**70])
KEYS = st.sampled_from(["list", "x", "y"])
STATES = st.dictionaries(st.sampled_from(["x", "y"]), VALUES, max_size=2)
WHO = st.none() | CALLS
OPS = st.one_of(
    st.builds(Append, key=st.just("list"), items=st.lists(VALUES, max_size=2), tool_call_id=WHO),
    st.builds(Replace, key=KEYS, value=VALUES, tool_call_id=WHO),
    st.builds(Delete, key=KEYS, tool_call_id=WHO),
)
WRITES = st.builds(StepWrites, ops=st.lists(OPS, max_size=3).map(tuple))
MESSAGES = st.lists(st.sampled_from([said("hello"), said("日本語"), asked("call-1")]), max_size=2).map(tuple)
START_OPTIONS = ("keep_step_count", "keep_suspension", "abandon_pending", "drop_unanswered", "count_resume")


@dataclass(frozen=True)
class Action:
    """One act on one session with its drawn arguments, so that a report can be read."""

    perform: Perform
    session: str
    drawn: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.perform.__name__}({self.session!r}, {self.drawn})"

    def on(self, store: SessionStateStore, name: str) -> Awaitable[Any]:
        """Do it."""
        return self.perform(store, self.session, name, **self.drawn)


def _action(perform: Perform, **drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[Action]:
    return st.builds(Action, st.just(perform), LIVELY, st.fixed_dictionaries(drawn))


_PENDING = st.sampled_from([("call-1",), ("call-1",), ("call-1", "call-2"), ()])
_HOW_A_STEP_ENDS = st.sampled_from(["go on", "suspend", "suspend", *ENDS])
_COMMIT = _action(
    acts.commit,
    step=STEPS,
    messages=MESSAGES,
    writes=WRITES,
    pending=_PENDING,
    consume=st.booleans(),
    how=_HOW_A_STEP_ENDS,
    late=LATENESS,
)
_START = _action(
    acts.start,
    messages=MESSAGES,
    writes=WRITES,
    options=st.sets(st.sampled_from(START_OPTIONS), max_size=2),
    rewind=st.none() | st.integers(0, 2),
    owner=st.none() | OWNERS,
    late=LATENESS,
)
_STAGE = _action(acts.stage, step=STEPS, call=CALLS, index=st.integers(0, 1), writes=WRITES)
_SUBMIT = _action(acts.submit, number=st.integers(0, 2), at_root=st.booleans(), result=VALUES)
_EFFECT = _action(acts.run_effect, owner=OWNERS, how=st.sampled_from(["begin", "rerun", "renew", "finish", "finish"]))

ACTIONS = st.one_of(
    # Acts listed twice or more are what long histories consist of.
    *[_COMMIT] * 4,
    *[_SUBMIT] * 3,
    *[_START] * 2,
    *[_STAGE] * 2,
    *[_EFFECT] * 2,
    _action(acts.use_staging, step=STEPS, how=st.sampled_from(["promote", "discard", "discard all"])),
    _action(acts.commit_plainly, step=STEPS, state=STATES),
    _action(acts.create, state=STATES, user=st.none() | st.just("ann")),
    _action(acts.save, state=STATES, status=STATUSES, late=LATENESS),
    _action(acts.append, messages=MESSAGES),
    _action(acts.truncate, count=st.integers(0, 4)),
    _action(acts.merge, writes=WRITES),
    _action(acts.change_status, status=STATUSES),
    _action(acts.count, value=st.none() | st.just("v")),
    _action(acts.checkpoint, step=STEPS),
    _action(acts.refer, child=st.sampled_from(["child-1", "child-2"]), update=st.booleans()),
    _action(
        acts.branch,
        copy=st.sampled_from(["c", "d", "a"]),
        at=st.sampled_from(["end", "message", "checkpoint"]),
        n=st.integers(0, 4),
    ),
    _action(acts.delete),
    _action(acts.settle, writes=WRITES),
    _action(acts.hold_lease, owner=OWNERS, ttl=st.sampled_from([0, 5, 50])),
    _action(acts.claim, owner=st.none() | OWNERS, late=LATENESS),
    _action(acts.end_run, how=st.sampled_from(list(ENDS))),
    _action(acts.expire),
    _action(acts.stop, how=st.sampled_from(["interrupt", "abort", "take", "clear"])),
)


class StoreMachine(RuleBasedStateMachine):
    """Plays one history on the store under test and on the reference."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._clock = ManualClock()
        self._names = itertools.count(1)
        self._reference = InMemoryStateStore(clock=self._clock)
        self._tested = self._runner.run(opened(self.open_tested(clock=self._clock)))
        self._touched: set[str] = set()

    def open_tested(self, **options: Any) -> SessionStateStore | Awaitable[SessionStateStore]:
        """For you to implement: an empty store, on the clock among the options."""
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self._compare(PARENTS)
        finally:
            self._runner.run(self._tested.close())
            self._runner.close()

    @initialize(messages=MESSAGES)
    def begin_with_runs(self, messages: Any) -> None:
        nothing: dict[str, Any] = {"writes": NO_WRITES, "options": set(), "rewind": None, "owner": None, "late": 0}
        for session in ("a", "a-1", "b"):
            self._do(Action(acts.create, session, {"state": {}, "user": "ann"}))
            self._do(Action(acts.start, session, {"messages": messages, **nothing}))

    @rule(action=ACTIONS, passing=PASSING)
    def write(self, action: Action, passing: int) -> None:
        """Do it on both stores; the results, or the refusals, are the same."""
        self._clock.advance(passing)
        self._do(action)

    @invariant()
    def both_show_the_same(self) -> None:
        """What the last act may have changed is the same; the rest is compared at the end."""
        self._compare(self._touched)
        self._touched.clear()

    def _do(self, action: Action) -> None:
        name = f"r-{next(self._names)}"
        self._touched.update({action.session, "a"})
        about = {action.session, action.drawn.get("copy", action.session)}
        expected, found = (
            self._runner.run(outcome(store, lambda store: action.on(store, name), about))
            for store in (self._reference, self._tested)
        )
        assert_same(found, expected)

    def _compare(self, sessions: Iterable[str]) -> None:
        expected, found = (
            self._runner.run(everything_visible(store, sorted(sessions))) for store in (self._reference, self._tested)
        )
        assert_same(found, expected, "what is seen")


def machine_settings(most: int | None = None) -> settings:
    """Half of the profile's examples, as each is a whole history; for a store across a network perhaps fewer.

    A history that shows a difference is reported as it was found: it is short, the stores differ at its end, and making
    it shorter on a slow store takes longer than a test may.
    """
    profile = settings()
    return settings(
        profile,
        max_examples=min(max(10, profile.max_examples // 2), most or profile.max_examples),
        stateful_step_count=30,
        deadline=None,
        phases=[phase for phase in profile.phases if phase not in (Phase.shrink, Phase.explain)],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
