"""Staged changes: what one call of a step produced, held in the store until the step commits."""

from helix_agents.domain.ids import StepId, ToolCallId
from helix_agents.domain.messages import Message
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.writes import NO_WRITES, StepWrites


class StagedChange(Record):
    """One row per step and call; staging it again replaces it. `index` is the call's position in the model's order."""

    step_id: StepId
    tool_call_id: ToolCallId
    index: int = 0
    writes: StepWrites = NO_WRITES
    message: Message | None = None
    data: JSON = None
    staged_at: int = 0
