"""The workflow's file is one that Temporal may replay: its own sandbox says so, it reaches nothing but the loop, and it
goes the way that histories tell."""

from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from helix_agents.engine import plain
from helix_agents.runtimes.temporal.worker import sandbox
from helix_agents.runtimes.temporal.workflow import Turn, TurnOfAnotherVersion
from tests.architecture.source_tree import PACKAGE, imports_of
from tests.support.temporal_histories import FOLDER, STORIES, names_of

WORKFLOW = PACKAGE / "runtimes" / "temporal" / "workflow.py"
HARMLESS = {"collections", "datetime", "functools", "typing", "temporalio"}
OURS = {"helix_agents.engine.effects", "helix_agents.engine.plain", "helix_agents.runtimes.temporal.turns"}


async def test_the_workflows_pass_the_sandbox_that_workers_use() -> None:
    for defined in (Turn, TurnOfAnotherVersion):
        sandbox().prepare_workflow(workflow._Definition.must_from_class(defined))


def test_the_workflow_imports_the_loop_and_nothing_of_the_outside_world() -> None:
    names = set(imports_of(WORKFLOW))
    ours = {name for name in names if name.startswith("helix_agents")}
    assert all(any(name.startswith(module) for module in OURS) for name in ours), sorted(ours)
    assert {name.split(".")[0] for name in names - ours} <= HARMLESS


async def replay(name: str) -> None:
    """Go through a history again.

    Raises:
        Exception: the workflow would not have gone that way.
    """
    history = WorkflowHistory.from_json(name, (FOLDER / f"{name}.json").read_text())
    await Replayer(workflows=[Turn, TurnOfAnotherVersion], workflow_runner=sandbox()).replay_workflow(history)


@pytest.mark.parametrize("story", STORIES)
async def test_a_history_that_was_written_before_is_replayed(story: str) -> None:
    """Turns that are going on outlive a deploy; one that would fail them has to raise EFFECT_SEQUENCE."""
    names = names_of(story)
    assert names, "write those of a new EFFECT_SEQUENCE: uv run python -m tests.support.temporal_histories"
    for name in names:
        await replay(name)


async def test_a_history_that_does_not_fit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = plain.run_turn

    async def opens_twice(ops: Any) -> Any:
        await ops.open()
        return await loop(ops)

    monkeypatch.setattr(plain, "run_turn", opens_twice)
    with pytest.raises(workflow.NondeterminismError):
        await replay("tools-1")
