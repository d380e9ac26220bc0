"""What readers of the stream are told about a commit: before it, with it, and after it."""

import msgspec

from helix_agents.domain.chunks import (
    CheckpointCreated,
    ErrorChunk,
    Output,
    RunInterrupted,
    RunPaused,
    StatePatch,
    StepCommitted,
    StreamChunk,
    ToolApprovalRequest,
    ToolStart,
)
from helix_agents.domain.commits import Committed, told_of
from helix_agents.domain.errors import ChunkTooLargeError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.writes import apply_writes, changed_by_several
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.patches import values_patch
from helix_agents.engine.steps.step_work import CANCELLED, StepWork


async def announce_end(scope: RunScope, work: StepWork) -> None:
    """Write how the run ends, as chunks that become visible with its last commit."""
    step = work.batch.step
    for call in work.pending:
        if work.batch.round == 0 or call.tool_call_id in scope.carried.unknown:
            await scope.show(_waiting(scope, step, call))
    if work.suspended:
        ids = tuple(call.tool_call_id for call in work.pending)
        await scope.show(scope.chunk(RunPaused, step, reason=work.reason or "", tool_call_ids=ids))
    elif work.ended == "completed":
        await scope.show(scope.chunk(Output, step, output=work.record["output"]))
    elif work.ended == "interrupted":
        await scope.show(scope.chunk(RunInterrupted, step, reason=work.reason))
    elif work.failure is not None and work.failure.code != CANCELLED:
        code, error, retryable = work.failure
        await scope.show(scope.chunk(ErrorChunk, step, error=error, code=code, retryable=retryable))


async def announce_merges(scope: RunScope, work: StepWork) -> None:
    """Write the final values of fields that several calls changed: each call told readers only its own version."""
    keys = changed_by_several(work.ops)
    if keys:
        state = apply_writes(scope.custom_state, work.ops)
        await scope.show(scope.chunk(StatePatch, work.batch.step, patch=values_patch(state, keys)))


async def announce_commit(
    scope: RunScope, work: StepWork, committed: Committed, taken: tuple[UserMessage, ...] = ()
) -> None:
    """Tell readers that the step's chunks are final because its messages are in the store, and which messages the run
    has `taken` in."""
    for marker in told_of(committed, commit_markers(scope, work)):
        if taken and isinstance(marker, StepCommitted):
            marker = msgspec.structs.replace(marker, taken=taken)  # noqa: PLW2901
        try:
            await scope.writer.write(marker)
        except ChunkTooLargeError:
            # A step can have more warnings than fit into a chunk; that it is committed must be told all the same.
            if not isinstance(marker, StepCommitted):
                raise
            await scope.writer.write(msgspec.structs.replace(marker, warnings=(), taken=()))


def commit_markers(scope: RunScope, work: StepWork) -> tuple[StreamChunk, ...]:
    """The chunks about a commit, with blanks for what only the commit itself can fill in."""
    step = work.batch.step
    return (
        scope.chunk(StepCommitted, step, step_id=work.step_id, checkpoint_id="", message_count=0),
        scope.chunk(CheckpointCreated, step, checkpoint_id=""),
    )


def _waiting(scope: RunScope, step: int, call: PendingCall) -> StreamChunk:
    about = {"tool_call_id": call.tool_call_id, "tool_name": call.tool_name}
    if call.kind != "approval":
        return scope.chunk(ToolStart, step, **about, arguments=call.input)
    return scope.chunk(
        ToolApprovalRequest,
        step,
        **about,
        approval_id=call.approval_id or "",
        input=call.input,
        preview=call.preview,
        reason=call.reason,
    )
