"""What a commit is made of, before it is made."""

from helix_agents.domain.entries import Put
from helix_agents.domain.errors import StateSizeExceededError
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.domain.writes import Replace, StepWrites
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.effects import OpenBatch, PlannedCall
from helix_agents.engine.steps.step_work import StepWork


def test_a_call_whose_writes_are_refused_changes_nothing_else_either() -> None:
    def result(call_id: str, size: int) -> RestingResult:
        writes = StepWrites(ops=(Replace(key=call_id, value="x" * size, tool_call_id=call_id),))
        message = ToolMessage(tool_call_id=call_id, tool_name="note", content="noted")
        return RestingResult(message=message, writes=writes, entries=(Put(scope="s", key=call_id, value="1"),))

    results = {call_id: result(call_id, size) for call_id, size in (("small", 10), ("large", 1_000))}
    calls = tuple(PlannedCall(tool_call_id=call_id, tool_name="note", kind="server") for call_id in results)
    work = StepWork(
        batch=OpenBatch(step=1, calls=calls),
        step_id="r.1",
        open_reply=AssistantMessage(),
        reply=None,
        results=results,
        held={},
        writes=[each.writes for each in results.values()],
        messages=[each.message for each in results.values()],
        record={},
    )
    work.drop_writes(StateSizeExceededError("s", "state", 1_010, 100), {})
    assert [(each.message.error, len(each.entries)) for each in work.new] == [(False, 1), (True, 0)]
    assert work.messages == [each.message for each in work.new]
    assert [op.key for op in work.ops] == ["small"]
