"""What a whole step means for its run: continue, finish, or fail."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from helix_agents.agent.context import CompletedStep
from helix_agents.agent.failures import Contained, ControlFlow, FailRun
from helix_agents.domain.errors import ToolOutputError
from helix_agents.domain.messages import AssistantMessage, ToolMessage, UserMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.texts import said_by, storable
from helix_agents.domain.usage import TokenCount
from helix_agents.domain.writes import StepWrites
from helix_agents.engine.desk import Failure, RestingResult
from helix_agents.engine.effects import OpenBatch
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.corrections import CORRECTABLE, OUTPUT_REMINDER
from helix_agents.ports.llm import FINISH_TOOL

_REMINDER = f"You have not handed in the result yet. Call {FINISH_TOOL} with it; text alone does not end the task."


class GoOn(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the model again, after a reminder if there is one."""

    reminder: UserMessage | None = None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The run has its output."""

    output: JSON
    reason: str = "finished"


Verdict = GoOn | Finished | Failure


class WholeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose calls all have their results. `refused` says why its text is not accepted as the run's output, and
    `max_steps` is the limit of the agent that would do the next step."""

    batch: OpenBatch
    reply: AssistantMessage
    results: tuple[ToolMessage, ...]
    new: tuple[RestingResult, ...]
    writes: tuple[StepWrites, ...]
    tokens: TokenCount
    refused: str | None
    max_steps: int


def judge(scope: RunScope, step: WholeStep) -> Verdict:
    """Decide what follows a whole step. Pure except for `stop_when`, which must be pure itself."""
    failure = failed_by(scope, step.new, step.results)
    if failure is not None:
        return failure
    finished = _finished(scope, step)
    if finished is not None:
        return finished
    if not step.batch.calls:
        return _text_only(scope, step)
    return _limits(scope, step) or GoOn()


def failed_by(scope: RunScope, new: Iterable[RestingResult], known: Sequence[ToolMessage]) -> Failure | None:
    """Why the results of a step so far make its run fail, or None. `known` includes results of earlier rounds."""
    for result in new:
        if result.fail_run is not None:
            return Failure("tool_failed_run", result.fail_run)
    # Once the user has sent a new message, the failed tries of the previous turn no longer count.
    return None if scope.entered_meanwhile else _exhausted(scope, known)


def _exhausted(scope: RunScope, results: Sequence[ToolMessage]) -> Failure | None:
    """The failure of a tool whose calls the model did not get right within the allowed tries."""
    counts: dict[str, int] = {}
    # Once the output is handed in, it does not matter how often the model tried, or that it handed it in twice.
    handed_in = any(message.tool_name == FINISH_TOOL and not message.error for message in results)
    for message in results:
        if message.code in CORRECTABLE and not (handed_in and message.tool_name == FINISH_TOOL):
            counts[message.tool_name] = counts.get(message.tool_name, scope.corrections.of(message.tool_name)) + 1
            allowed = scope.agent.retries_of(message.tool_name)
            if counts[message.tool_name] > allowed:
                code = "output_invalid" if message.tool_name == FINISH_TOOL else "tool_retries_exhausted"
                return Failure(
                    code,
                    f"{message.tool_name} was not called correctly, and no corrections are left (allowed: {allowed}): "
                    f"{message.content}",
                )
    return None


def _finished(scope: RunScope, step: WholeStep) -> Finished | None:
    by_id = {result.message.tool_call_id: result for result in step.new}
    for call, message in zip(step.batch.calls, step.results, strict=True):
        if call.kind == "finish" and not message.error:
            arguments = next(each.arguments for each in step.reply.tool_calls if each.id == call.tool_call_id)
            assert scope.agent.output_type is not None
            return Finished(output=scope.agent.output_type.parse(arguments))
        result = by_id.get(call.tool_call_id)
        if result is not None and result.finishes:
            return Finished(output=result.output)
        if call.kind == "finish_with" and not message.error:
            # The result comes from an earlier round, or was supplied from outside.
            with suppress(ToolOutputError):
                return Finished(output=scope.agent.check_output(message.content, call.tool_name))
    return None


def _text_only(scope: RunScope, step: WholeStep) -> Verdict:
    """The model wants to do nothing more: the run ends, or the model is told what its output still lacks."""
    if scope.agent.output_type is None and step.refused is None:
        match step.reply.stop_reason:
            case "length" | "content_filter" as cut_off:
                return Finished(output=step.reply.text, reason=cut_off)
            case _:
                return Finished(output=step.reply.text)
    if scope.corrections.reminders >= scope.agent.output_retries:
        if step.refused is not None:
            return Failure("output_invalid", f"The reply was refused, and no corrections are left: {step.refused}")
        return Failure("output_missing", "The model ended its turn without handing in the output it was asked for.")
    limit = _limits(scope, step)
    if limit is not None:
        return limit
    return GoOn(reminder=refusal_of(step) or _reminder(_REMINDER))


def refusal_of(step: WholeStep) -> UserMessage | None:
    """Tells the model why its text was refused, if it was. This is said even if the run fails with it, for whoever
    continues the conversation."""
    return None if step.refused is None else _reminder(f"Your reply was not accepted: {step.refused}")


def _reminder(text: str) -> UserMessage:
    return UserMessage(content=text, hidden=True, metadata={"helix": OUTPUT_REMINDER})


def _limits(scope: RunScope, step: WholeStep) -> Verdict | None:
    agent, number = scope.agent, step.batch.step
    # If the user has sent a new message meanwhile, this step ends nothing: the answer to that message is still to come.
    if agent.stop_when is not None and not scope.entered_meanwhile:
        try:
            with Contained("stop_when"):
                stop = agent.stop_when(_completed_step(scope, step))
        except FailRun as decision:
            return Failure("hook_failed_run", decision.reason)
        except (Exception, ControlFlow) as problem:
            log_exception("stop_when.failed", problem, session_id=scope.session.session_id)
            return Failure("stop_when_failed", f"stop_when raised {type(problem).__name__}: {said_by(problem)}")
        if stop:
            reason = storable(stop) if isinstance(stop, str) else "stop_when"
            if agent.output_type is not None or step.refused is not None:
                return Failure("stopped_without_output", f"stop_when ended the run before its output: {reason}")
            return Finished(output=step.reply.text, reason=reason)
    if number >= step.max_steps:
        return Failure(
            "max_steps",
            f"The run used all the steps it may take ({number}); a retry continues with a fresh budget.",
            True,
        )
    return None


def _completed_step(scope: RunScope, step: WholeStep) -> CompletedStep[Any]:
    return CompletedStep(
        number=step.batch.step,
        max_steps=scope.agent.max_steps,
        reply=step.reply,
        results=step.results,
        usage=step.tokens,
        draft=scope.draft(*step.writes),
    )
