"""A context tells user code where it works and passes on what it says."""

from dataclasses import FrozenInstanceError
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.context import CompletedStep, RunContext, RunLink, ToolContext, UsageReport
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.state_type import NoState
from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.messages import AssistantMessage, ToolCall, UserMessage
from helix_agents.domain.usage import TokenCount
from helix_agents.domain.writes import Append


class Notes(BaseModel):
    queries: list[str] = []


def test_the_state_is_the_draft_and_its_changes_are_recorded() -> None:
    draft = StateDraft.of(Notes, {"queries": ["a"]})
    ctx: RunContext[Notes] = RunContext(
        session_id="s", run_id="r", step=2, agent="writer", deps=None, link=RunLink(draft=draft)
    )
    ctx.state.queries.append("b")
    assert draft.writes().ops == (Append(key="queries", items=["b"]),)


def test_what_is_emitted_is_json_when_it_leaves() -> None:
    heard: list[Any] = []
    ctx = ToolContext.standalone(emit=lambda name, data: heard.append((name, data)))
    ctx.emit("started")
    ctx.emit("found", {"on": date(2026, 1, 1)})
    assert heard == [("started", None), ("found", {"on": "2026-01-01"})]
    with pytest.raises(UnstorableValueError):
        ctx.emit("broken", object())


def test_usage_is_reported_under_its_name() -> None:
    heard: list[UsageReport] = []
    ctx = ToolContext.standalone(record_usage=heard.append)
    ctx.record_usage("pages")
    ctx.record_usage("embedding", 2.5, tokens=TokenCount(prompt=3), success=False, metadata={"on": date(2026, 1, 1)})
    assert heard == [
        UsageReport(name="pages", amount=1),
        UsageReport(
            name="embedding", amount=2.5, tokens=TokenCount(prompt=3), success=False, metadata={"on": "2026-01-01"}
        ),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"name": 5},
        {"name": "\ud800"},
        {"name": "a\0b"},
        {"name": "pages", "amount": float("inf")},
        {"name": "pages", "amount": "many"},
        {"name": "pages", "tokens": TokenCount(prompt=None)},  # type: ignore[arg-type]
    ],
)
def test_usage_that_could_not_be_read_back_is_refused_where_it_is_reported(given: Any) -> None:
    with pytest.raises(UnstorableValueError):
        ToolContext.standalone().record_usage(**given)


@pytest.mark.parametrize("name", [5, "\ud800"])
def test_an_event_needs_a_name_that_can_be_stored(name: Any) -> None:
    with pytest.raises(UnstorableValueError):
        ToolContext.standalone().emit(name)


def test_a_stop_is_seen_when_it_is_asked_for() -> None:
    stopped = False
    ctx = ToolContext.standalone()
    assert ctx.cancelled is False
    link = RunLink(draft=ctx.link.draft, is_cancelled=lambda: stopped)
    watching: RunContext = RunContext(session_id="s", run_id="r", step=1, agent="a", deps=None, link=link)
    assert watching.cancelled is False
    stopped = True
    assert watching.cancelled is True


def test_a_context_for_tests_needs_nothing() -> None:
    notes = Notes()
    ctx = ToolContext.standalone(notes, "the pool", transcript=[UserMessage(content="hi")])
    assert ctx.state is notes
    assert ctx.deps == "the pool"
    assert ctx.transcript == [UserMessage(content="hi")]
    assert isinstance(ToolContext.standalone().state, NoState)


def test_a_context_cannot_be_given_another_state() -> None:
    ctx = ToolContext.standalone(Notes())
    with pytest.raises((AttributeError, FrozenInstanceError)):
        ctx.state = Notes()  # pyright: ignore[reportAttributeAccessIssue]


def test_an_agent_without_state_says_so_when_a_tool_tries_to_keep_something() -> None:
    with pytest.raises(AttributeError, match=r"no state to set 'queries' on; define it with Agent\(state=YourModel\)"):
        ToolContext.standalone().state.queries = []  # pyright: ignore[reportAttributeAccessIssue]


def test_a_completed_step_knows_what_was_called() -> None:
    step = CompletedStep(
        number=1,
        max_steps=3,
        reply=AssistantMessage(tool_calls=(ToolCall(id="c", name="search"),)),
        usage=TokenCount(),
        draft=StateDraft.of(Notes, {"queries": ["a"]}),
    )
    assert step.called("search")
    assert not step.called("publish")
    assert step.state.queries == ["a"]
