"""State writes of calls that ran side by side: each fits the state it started from, but together they may not."""

from collections.abc import Iterable

import msgspec

from helix_agents.domain.errors import InvalidStateError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.writes import NO_WRITES, AppendToNonListError, StepWrites
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.scope import RunScope


def fit_together(
    scope: RunScope,
    results: dict[ToolCallId, RestingResult],
    order: Iterable[ToolCallId],
    before: StepWrites = NO_WRITES,
) -> dict[ToolCallId, RestingResult]:
    """The results as they can be committed together, after what hooks wrote `before` them.

    A state that its type refuses could never be loaded again. A call whose writes do not fit those of the calls before
    it in `order` therefore loses them, and its result says so.
    """
    writing = [results[call_id] for call_id in order if call_id in results and results[call_id].writes]
    if len(writing) + bool(before) < 2 or _refusal(scope, [before, *(each.writes for each in writing)]) is None:
        return results
    fitting, kept = dict(results), [before]
    for result in writing:
        refused = _refusal(scope, [*kept, result.writes])
        if refused is None:
            kept.append(result.writes)
        else:
            fitting[result.message.tool_call_id] = _without_writes(result, refused)
    return fitting


def _refusal(scope: RunScope, writes: list[StepWrites]) -> InvalidStateError | None:
    """Why the state type refuses the state after these writes; None if it does not."""
    try:
        _ = scope.draft(*writes).value
    except InvalidStateError as problem:
        return problem
    except AppendToNonListError as problem:
        return InvalidStateError(scope.agent.state_type.name, str(problem))
    return None


def _without_writes(result: RestingResult, refused: InvalidStateError) -> RestingResult:
    message = msgspec.structs.replace(
        result.message,
        content=f"{refused} Other calls of the same reply changed it too.",
        error=True,
        code="tool_output_invalid",
    )
    return msgspec.structs.replace(result, message=message, writes=NO_WRITES, entries=(), finishes=False, output=None)
