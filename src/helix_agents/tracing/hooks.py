"""Hooks that turn conversations into OpenTelemetry traces, one trace each, however many processes work on it."""

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from helix_agents.agent.context import RunContext, RunInfo, RunTrace
from helix_agents.agent.hook_events import (
    AfterLLMCallEvent,
    AfterToolEvent,
    AgentCompleteEvent,
    AgentFailEvent,
    AgentInterruptedEvent,
    AgentResumedEvent,
    AgentStartEvent,
    AgentSuspendedEvent,
    AroundLLMCallEvent,
    AroundToolEvent,
    HandoffEvent,
    LLMRetryEvent,
    ToolRefusedEvent,
    ToolUnsettledEvent,
)
from helix_agents.agent.hooks import Hooks
from helix_agents.domain.errors import HelixError
from helix_agents.domain.messages import AssistantMessage
from helix_agents.domain.queued import said_last
from helix_agents.domain.traces import span_id_of_errand, span_id_of_run
from helix_agents.domain.transcript import HANDOFF
from helix_agents.ports.llm import ModelRequest
from helix_agents.tracing import contents
from helix_agents.tracing.attributes import Attributes, finish_reason, of_model, of_reply, of_run, of_settings, of_tool
from helix_agents.tracing.meters import Meters
from helix_agents.tracing.spans import Place, Spans, current

OwnAttributes: TypeAlias = Callable[[RunInfo], Mapping[str, AttributeValue]]
_MS = 1_000_000


class OpenTelemetryHooks(Hooks[Any, Any]):
    """Writes every run as spans of OpenTelemetry's GenAI conventions (`invoke_agent`, `chat` and `execute_tool`), and
    measures it.

    A conversation is one trace, including its suspensions, its sub-agents and the attempts that continue it after a
    crash; its id is `tracing_context.trace_id` of the session. Spans that your tools and the model's client create are
    below the span of the call in which they are created. Pass it to the executor, once: it sees every agent there.

    Args:
        tracer_provider: Where spans go. Defaults to the provider that your program has set.
        meter_provider: Where metrics of models, tools and runs go. Same default.
        capture_content: Whether to write prompts, replies, arguments, results and the texts of errors as well. By
            default only if the environment says so (`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`).
        attributes: More attributes for every span of a run: `lambda ctx: {"user.id": ctx.user_id or ""}`.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
        attributes: OwnAttributes | None = None,
    ) -> None:
        super().__init__()
        self._spans = Spans(tracer_provider)
        self._meters = Meters(meter_provider)
        self._contents = contents.are_captured_by_environment() if capture_content is None else capture_content
        self._own = attributes

    # -- runs

    def on_agent_start(self, ctx: RunContext[Any, Any], event: AgentStartEvent) -> None:
        self._begin(ctx)

    def on_agent_resumed(self, ctx: RunContext[Any, Any], event: AgentResumedEvent) -> None:
        self._begin(ctx)

    def _begin(self, ctx: RunInfo) -> None:
        self._meters.run_began(ctx, time.time_ns() // _MS)
        self._point_to_run(ctx)

    def on_agent_complete(self, ctx: RunContext[Any, Any], event: AgentCompleteEvent) -> None:
        self._meters.run_ended(ctx, "completed", event.duration_ms)
        span = self._start_run(ctx, "completed", event.step_count)
        if span is not None:
            if self._contents:
                said = AssistantMessage(text=contents.output_of(event.output))
                span.set_attribute("gen_ai.output.messages", contents.reply_of(said, "stop"))
            span.end()

    def on_agent_fail(self, ctx: RunContext[Any, Any], event: AgentFailEvent) -> None:
        self._meters.run_ended(ctx, "failed", event.duration_ms, event.code)
        span = self._start_run(ctx, "failed", event.step_count)
        if span is not None:
            self._fail(span, event.code, event.error)
            span.end()

    def on_agent_interrupted(self, ctx: RunContext[Any, Any], event: AgentInterruptedEvent) -> None:
        self._meters.run_ended(ctx, "interrupted", event.duration_ms)
        span = self._start_run(ctx, "interrupted", event.step_count)
        if span is not None:
            told = {"helix.reason": event.reason} if self._contents and event.reason is not None else None
            span.add_event("interrupted", told)
            span.end()

    def on_agent_suspended(self, ctx: RunContext[Any, Any], event: AgentSuspendedEvent) -> None:
        self._meters.run_ended(ctx, "suspended", event.duration_ms)
        span = self._start_run(ctx, "suspended", event.step_count)
        if span is not None:
            span.add_event("suspended", {"helix.waits_for": event.reason, "helix.tool_call_ids": event.tool_call_ids})
            span.end()

    def on_handoff(self, ctx: RunContext[Any, Any], event: HandoffEvent) -> None:
        """What follows in the run is the work of another agent: each span names the one whose work it is."""
        about = of_tool(f"{HANDOFF}{event.to}", event.tool_call_id, "nobody")
        told = ctx.trace
        span = None if told is None else self._start(ctx, told, f"handoff {event.to}", about)
        if span is not None:
            span.set_attribute("helix.handoff.to", event.to)
            span.end()

    # -- models

    def around_llm_call(
        self, ctx: RunInfo, event: AroundLLMCallEvent
    ) -> Generator[None, AfterLLMCallEvent, None] | None:
        told = ctx.trace
        return None if told is None else self._asking(ctx, told, event)

    def _asking(
        self, ctx: RunInfo, told: RunTrace, event: AroundLLMCallEvent
    ) -> Generator[None, AfterLLMCallEvent, None]:
        model = of_model(event.model)
        begun = time.perf_counter_ns()
        span = self._start(ctx, told, f"chat {model['gen_ai.request.model']}", model, kind=SpanKind.CLIENT)
        try:
            if span is None:
                outcome = yield
            else:
                span.set_attributes(of_settings(event.request.settings))
                span.set_attribute("helix.step", ctx.step)
                if event.purpose != "reply":
                    span.set_attribute("helix.purpose", event.purpose)
                if self._contents:
                    self._write_request(span, event.request)
                with current(span):
                    outcome = yield from self._outcome_of(span)
                    self._write_reply(span, outcome)
        except BaseException as problem:
            self._meters.gave_no_answer(time.perf_counter_ns() - begun, model, _name_of(problem))
            raise
        self._meters.answered(time.perf_counter_ns() - begun, model, outcome)

    def on_llm_retry(self, ctx: RunInfo, event: LLMRetryEvent) -> None:
        about: Attributes = {
            "error.type": event.code,
            "helix.failures": event.failures,
            "helix.wait_seconds": event.wait_seconds,
        }
        trace.get_current_span().add_event("retry", about)

    # -- tools

    def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None] | None:
        told = ctx.trace
        return None if told is None or not self._spans.are_wanted else self._running(ctx, told, event)

    def _running(self, ctx: RunInfo, told: RunTrace, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None]:
        about = of_tool(event.tool_name, event.tool_call_id, "function")
        span = self._start(ctx, told, f"execute_tool {event.tool_name}", about)
        if span is None:
            return
        with current(span):
            outcome = yield from self._outcome_of(span)
            self._write_result(span, outcome)

    def after_tool(self, ctx: RunContext[Any, Any], event: AfterToolEvent) -> None:
        """A function has a span from its `around_tool`; any other call gets its span now."""
        self._meters.call_done(ctx, event)
        if event.ran_by != "function":
            # Times are in milliseconds: what happened within the last one is part of it. A result that an earlier
            # version left does not say when it came.
            now = time.time_ns()
            ended = min((event.ended_at + 1) * _MS, now) if event.ended_at else now
            span = self._start_call(ctx, event, ended - (event.duration_ms + 1) * _MS)
            if span is not None:
                self._write_result(span, event)
                span.end(ended)

    def on_tool_refused(self, ctx: RunContext[Any, Any], event: ToolRefusedEvent) -> None:
        about = of_tool(event.tool_name, event.tool_call_id, "nobody")
        span = None if ctx.trace is None else self._start(ctx, ctx.trace, f"execute_tool {event.tool_name}", about)
        if span is not None:
            self._fail(span, event.code, event.error)
            span.end()

    def on_tool_unsettled(self, ctx: RunContext[Any, Any], event: ToolUnsettledEvent) -> None:
        """The agents that work on the call have spans below it, whether or not the call is ever continued."""
        if event.waits and event.ran_by == "client":
            self._meters.call_waits(ctx, event.tool_name)
        if event.errand is not None:
            span = self._start_call(ctx, event, time.time_ns() - event.duration_ms * _MS)
            if span is not None:
                span.add_event("waits" if event.waits else "stopped")
                span.end()

    # -- how spans are made

    def _start_run(self, ctx: RunContext[Any, Any], status: str, steps: int) -> Span | None:
        """The span of a run that is over, from the start of its first attempt."""
        told = ctx.trace
        if told is None or not self._spans.are_wanted:
            return None
        about: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "helix.run.status": status,
            "helix.run.turn": told.turn,
            "helix.run.steps": steps,
        }
        if self._contents:
            about["gen_ai.input.messages"] = contents.messages_of(said_last(ctx.transcript))
        return self._spans.start(
            f"invoke_agent {ctx.agent}",
            below=_above_run(ctx, told),
            span_id=span_id_of_run(ctx.run_id),
            attributes={**self._about(ctx, told), **about},
            links=self._links(told),
            start_time=min(told.started_at * _MS, time.time_ns()),
        )

    def _start_call(self, ctx: RunInfo, event: AfterToolEvent | ToolUnsettledEvent, begun: int) -> Span | None:
        """The span of a call for which no function ran here. If it has waited since an earlier run, its span in this
        run starts with the run."""
        told = ctx.trace
        if told is None:
            return None
        return self._start(
            ctx,
            told,
            f"execute_tool {event.tool_name}",
            of_tool(event.tool_name, event.tool_call_id, event.ran_by),
            span_id=None if event.errand is None else span_id_of_errand(event.errand),
            start_time=min(max(begun, told.started_at * _MS), time.time_ns()),
        )

    def _start(
        self,
        ctx: RunInfo,
        told: RunTrace,
        name: str,
        about: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        span_id: str | None = None,
        start_time: int | None = None,
    ) -> Span | None:
        """A span below that of the run."""
        if not self._spans.are_wanted:
            return None
        return self._spans.start(
            name,
            below=_run(ctx.run_id, told),
            span_id=span_id,
            kind=kind,
            attributes={**self._about(ctx, told), **about},
            start_time=start_time,
        )

    def _about(self, ctx: RunInfo, told: RunTrace) -> Attributes:
        return {**of_run(ctx, told), **(self._own(ctx) if self._own is not None else {})}

    def _links(self, told: RunTrace) -> list[Link]:
        """Links to the run before this one, and to the caller that requested it from within its own trace."""
        links: list[Link] = []
        if told.previous_run_id is not None:
            before = self._spans.context_of(_run(told.previous_run_id, told))
            links.append(Link(before, {"helix.link": "previous_run"}))
        caller = trace.get_current_span().get_span_context()
        if told.errand is None and caller.is_valid and caller.trace_id != int(told.trace_id, 16):
            links.append(Link(caller, {"helix.link": "caller"}))
        return links

    def _point_to_run(self, ctx: RunInfo) -> None:
        """Link the caller's own trace, if it requested the run from within one, to the run."""
        caller, told = trace.get_current_span(), ctx.trace
        if told is None or told.errand is not None or not caller.is_recording() or not self._spans.are_wanted:
            return
        if caller.get_span_context().trace_id != int(told.trace_id, 16):
            about = {"helix.link": "run", "helix.session.id": ctx.session_id, "helix.run.id": ctx.run_id}
            caller.add_link(self._spans.context_of(_run(ctx.run_id, told)), about)

    # -- what is written into them

    def _outcome_of(self, span: Span) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except asyncio.CancelledError:
            span.add_event("stopped")
            raise
        except BaseException as problem:
            self._fail(span, _name_of(problem), problem)
            raise

    def _fail(self, span: Span, kind: str, error: object) -> None:
        """Record what went wrong by its name; the error's text may quote anything."""
        span.set_attribute("error.type", kind)
        said = contents.json_of(str(error) if isinstance(error, BaseException) else error) if self._contents else None
        span.set_status(Status(StatusCode.ERROR, said))

    def _write_request(self, span: Span, request: ModelRequest) -> None:
        span.set_attribute("gen_ai.system_instructions", contents.instructions_of(request.instructions))
        span.set_attribute("gen_ai.input.messages", contents.messages_of(request.messages))
        span.set_attribute("gen_ai.tool.definitions", contents.tools_of(request.tools))

    def _write_reply(self, span: Span, event: AfterLLMCallEvent) -> None:
        span.set_attributes(of_reply(event))
        if self._contents:
            span.set_attribute("gen_ai.output.messages", contents.reply_of(event.reply, finish_reason(event)))

    def _write_result(self, span: Span, event: AfterToolEvent) -> None:
        if self._contents:
            span.set_attribute("gen_ai.tool.call.arguments", contents.json_of(dict(event.input)))
            result = contents.parts_of_result(event.parts) if event.parts else event.result
            span.set_attribute("gen_ai.tool.call.result", contents.json_of(result))
        if event.error:
            self._fail(span, event.code or "tool_failed", event.result)


def _run(run_id: str, told: RunTrace) -> Place:
    return Place(told.trace_id, span_id_of_run(run_id))


def _above_run(ctx: RunInfo, told: RunTrace) -> Place:
    """What a run hangs below: the call that it works for, or what another service said; else it is a root span."""
    if told.errand is not None:
        return Place(told.trace_id, span_id_of_errand(told.errand))
    return Place(told.trace_id, told.parent_span_id if ctx.parent_session_id is None else None)


def _name_of(problem: BaseException) -> str:
    if isinstance(problem, asyncio.CancelledError):
        return "cancelled"
    return problem.code if isinstance(problem, HelixError) else type(problem).__qualname__
