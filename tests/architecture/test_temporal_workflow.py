"""The workflow's file is one that Temporal may replay: its own sandbox says so, and it reaches nothing but the loop."""

from temporalio import workflow

from helix_agents.runtimes.temporal.worker import sandbox
from helix_agents.runtimes.temporal.workflow import Turn, TurnOfAnotherVersion
from tests.architecture.source_tree import PACKAGE, imports_of

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
