"""State writes of calls that ran side by side: one that does not go with the others is dropped with all it would do."""

from types import SimpleNamespace
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field

from helix_agents.agent.agent import Agent
from helix_agents.domain.entries import Put
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.writes import NO_WRITES, Append, StepWrites, apply_writes
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.fitting import fit_together
from helix_agents.testing import ScriptedModel


class Box(BaseModel):
    """Room for one."""

    things: Annotated[list[str], Field(max_length=1)] = []


BOX = Agent(name="packer", model=ScriptedModel(["Done."]), state=Box)


def scope() -> RunScope:
    def draft(*writes: StepWrites) -> Any:
        state: dict[str, Any] = {"things": []}
        for each in writes:
            state = apply_writes(state, each.ops)
        return BOX.draft(state)

    return cast("RunScope", SimpleNamespace(agent=BOX, draft=draft))


def adding(thing: str) -> StepWrites:
    return StepWrites(ops=(Append(key="things", items=[thing]),))


def packed(call_id: str) -> RestingResult:
    return RestingResult(
        message=ToolMessage(tool_call_id=call_id, tool_name="pack", content="packed"),
        writes=adding(call_id),
        entries=(Put(scope="s", key=call_id, value="1"),),
        finishes=True,
        output="packed",
    )


def test_a_call_whose_writes_do_not_go_with_those_before_it_changes_nothing_and_finishes_nothing() -> None:
    results = {call_id: packed(call_id) for call_id in ("b", "a")}
    fitting = fit_together(scope(), results, ["a", "b", "of another round"])
    assert fitting["a"] is results["a"]
    lost = fitting["b"]
    assert (lost.message.error, lost.message.code) == (True, "tool_output_invalid")
    assert (lost.writes, lost.entries, lost.finishes, lost.output) == (NO_WRITES, (), False, None)


def test_what_hooks_wrote_before_them_comes_first() -> None:
    results = {"a": packed("a")}
    assert fit_together(scope(), results, ["a"])["a"] is results["a"]
    assert fit_together(scope(), results, ["a"], adding("of a hook"))["a"].writes == NO_WRITES
