"""The model effect: build the request, stream the reply, plan its calls, and keep all of it until the commit."""

from collections.abc import Sequence
from typing import Any

import msgspec

from helix_agents.agent.availability import withheld_from
from helix_agents.agent.failures import Contained, ControlFlow, FailRun
from helix_agents.agent.history import processed
from helix_agents.agent.hook_events import AfterLLMCallEvent, AroundLLMCallEvent, BeforeLLMCallEvent, LLMRetryEvent
from helix_agents.domain.errors import (
    BudgetExhaustedError,
    ContextTooLongError,
    HelixError,
    InvalidStateError,
    ModelError,
    ModelRefusedError,
    PriceUnknownError,
    SkillsUnavailableError,
    WorkspaceFailedError,
)
from helix_agents.domain.messages import AssistantMessage, Message
from helix_agents.domain.records import JSON
from helix_agents.domain.summaries import NOT_SUMMARISED
from helix_agents.domain.texts import said_by
from helix_agents.engine.children.detached import tell_finished_companions
from helix_agents.engine.desk import ASKING, PAID, Failure, Note, RestingReply
from helix_agents.engine.effects import Ask, Reply, RunFailed, Stopped
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.compacting import fewer_messages, messages_to_show
from helix_agents.engine.steps.news import tell_news
from helix_agents.engine.steps.planning import ForbiddenReply, plan_reply
from helix_agents.engine.steps.provider_calls import usage_of
from helix_agents.engine.steps.remembering import recall
from helix_agents.engine.steps.skills import settle_skills, with_skills
from helix_agents.engine.steps.spending import check_budgets
from helix_agents.engine.steps.stop_watch import undisturbed
from helix_agents.engine.steps.streaming import ReplyStream
from helix_agents.engine.steps.workspaces import settle_files
from helix_agents.engine.user_code import Notes, counted, fire, run_context, run_info, surrounding
from helix_agents.ports.llm import FINISH_TOOL, ModelRequest, ModelSettings, ReplyDone, ToolSpec
from helix_agents.ports.provider_tools import ProviderTool, refusal_of

_FAILURES = (
    ModelError,
    InvalidStateError,
    SkillsUnavailableError,
    WorkspaceFailedError,
    BudgetExhaustedError,
    PriceUnknownError,
)
"""Errors that fail the run because its model cannot be asked."""


async def ask_model(scope: RunScope, ask: Ask) -> Reply | Stopped | RunFailed:
    """Get this step's reply; a reply that is already recorded is not bought again."""
    recorded = await scope.desk.find_reply(scope.step_id(ask.step))
    if recorded is not None:
        return recorded.as_answer()
    if scope.failure is not None:
        return RunFailed(code=scope.failure.code)
    if scope.stop.requested.is_set():
        return Stopped()
    try:
        return await _ask(scope, ask.step)
    except FailRun as decision:
        return await _failed(scope, ask, Failure("hook_failed_run", decision.reason))
    except ForbiddenReply as forbidden:
        # The reply is not kept, so its text is withdrawn from whoever has read it.
        await undisturbed(scope.discard_step(ask.step))
        return await _failed(scope, ask, forbidden.failure)
    except _FAILURES as problem:
        return await _failed(scope, ask, Failure(problem.code, said_by(problem), problem.retryable))
    except HelixError:
        raise
    except (Exception, ControlFlow) as problem:
        # An adapter or an instruction function is broken: asking again would fail again.
        log_exception("model.broken", problem, session_id=scope.session.session_id, step=ask.step)
        return await _failed(scope, ask, Failure("internal_error", f"{type(problem).__name__}: {said_by(problem)}"))


class _Asking:
    """One question to the model: the context that instructions and hooks see, and what they change and count."""

    def __init__(self, scope: RunScope, step: int) -> None:
        self.scope = scope
        self.step = step
        self.notes = Notes()
        self.chosen: Sequence[Message] | None = None
        self.withheld: frozenset[str] = frozenset()
        self.look_again()

    def look_again(self) -> None:
        """Start again from the current state, which now includes the writes that hooks have noted meanwhile."""
        self.draft = self.scope.draft()
        self.context = run_context(self.scope, self.step, self.draft, self.notes)


async def _ask(scope: RunScope, step: int) -> Reply | Stopped:
    """Prepare the request, ask the model and leave the planned reply at the desk. If a stop cuts the call, what was
    streamed so far is left there instead."""
    await check_budgets(scope)
    await tell_finished_companions(scope, step)
    asking = _Asking(scope, step)
    await tell_news(scope, asking.context, asking.notes)
    if scope.agent.memory is not None:
        await recall(scope, asking.context)
    skills = scope.agent.skill_provider
    if skills is not None:
        await settle_skills(scope, skills)
    if scope.agent.workspace is not None:
        await settle_files(scope, scope.agent.workspace, step)
    messages: Sequence[Message] = scope.transcript
    if scope.shown is not None:
        messages = await messages_to_show(scope, scope.shown, step)
        await check_budgets(scope)
        asking.look_again()
    if scope.stop.requested.is_set():
        return Stopped()
    request = await _request(asking, messages)
    if scope.hooks.wants("before_llm_call"):
        await fire(scope, asking.context, BeforeLLMCallEvent(model=scope.model.name, request=request))
    begun = scope.services.clock.now_ms()
    stream = ReplyStream(scope, step)
    with scope.stop.cutting() as cut:
        asked = _surrounded if scope.hooks.wants("around_llm_call") else _with_retries
        done = await asked(asking, request, stream)
        resting = await _planned(asking, done, begun)
        await scope.said()
        await scope.desk.put_reply(scope.step_id(step), resting)
        return Reply(calls=resting.calls)
    assert cut.happened
    partial = await stream.partial()
    if partial is not None:
        await scope.desk.put_reply(scope.step_id(step), RestingReply(message=partial, **_told(scope, begun)))
    return Stopped()


async def _request(asking: _Asking, messages: Sequence[Message]) -> ModelRequest:
    scope = asking.scope
    instructions = await scope.agent.write_instructions(asking.context)
    tools, settings = scope.agent.tool_specs, scope.agent.settings
    if scope.agent.conditional_tools:
        asking.withheld = await withheld_from(scope.agent.conditional_tools, asking.context)
        tools = tuple(each for each in tools if each.name not in asking.withheld)
    if settings.tool_choice is not None:
        settings = _for_this_step(scope, settings, tools)
    return ModelRequest(
        agent_type=scope.agent.name,
        session_id=scope.session.session_id,
        run_id=scope.run.run_id,
        step=asking.step,
        instructions=instructions if scope.agent.skill_provider is None else with_skills(scope, instructions),
        tools=tools,
        settings=settings,
        provider_tools=_provider_tools(scope, tools),
        **await _chosen(asking, messages),
    )


def _for_this_step(scope: RunScope, settings: ModelSettings, tools: Sequence[ToolSpec]) -> ModelSettings:
    """The settings without a choice that cannot be followed, or that would make the model call tools for ever."""
    offered = {each.name for each in tools}
    match settings.tool_choice:
        case None | "auto" | "none":
            return settings
        case "required":
            holds = bool(offered) and (FINISH_TOOL in offered or not scope.corrections.answered)
        case name:
            holds = name in offered and not scope.corrections.answered
    return settings if holds else msgspec.structs.replace(settings, tool_choice=None)


def _provider_tools(scope: RunScope, offered: Sequence[ToolSpec]) -> tuple[ProviderTool, ...]:
    """The tools for the provider to run, beside those that the model is offered.

    Raises:
        ModelRefusedError: it does not. Another process may have started the run, without knowing its model.
    """
    tools = tuple(scope.agent.provider_tools)
    refusal = refusal_of(scope.model, tools, beside_tools=bool(offered)) if tools else None
    if refusal is not None:
        raise ModelRefusedError(scope.model.name, refusal)
    return tools


async def _chosen(asking: _Asking, messages: Sequence[Message]) -> dict[str, Any]:
    """The messages of a request, as the agent's history processors show them to the model."""
    processors = asking.scope.agent.history_processors
    if not processors:
        return {"messages": messages}
    asking.chosen = await processed(processors, asking.context, messages)
    return {"messages": asking.chosen, "chosen_from": messages}


async def _planned(asking: _Asking, done: ReplyDone, begun: int) -> RestingReply:
    """The reply with its consequences: its hooks have run, its calls are planned, and its usage is counted."""
    scope, step, reply, tokens = asking.scope, asking.step, done.reply, done.usage
    took = scope.services.clock.now_ms() - begun
    name = _answered_by(scope, done)
    if scope.shown is not None:
        scope.shown.was_read(tokens.prompt, asking.chosen)
    spent = scope.usage_entry(step, source_type="tokens", source_name=name, tokens=tokens, amount=took)
    paid = (spent, *usage_of(scope, step, reply.provider_calls))
    try:
        if scope.hooks.wants("after_llm_call"):
            told = AfterLLMCallEvent(model=name, reply=reply, usage=tokens, duration_ms=took)
            await fire(scope, asking.context, told)
        plan = await plan_reply(scope, step, reply, asking.context, asking.notes, asking.withheld)
        writes = asking.draft.writes()
    except (FailRun, ForbiddenReply, InvalidStateError):
        await scope.note(step, PAID, Note(usage=(*paid, *counted(scope, step, asking.notes))))
        raise
    return RestingReply(
        message=msgspec.structs.replace(reply, id=scope.step_id(step), metadata=_metadata(scope, reply)),
        calls=tuple(plan.calls),
        rejections=plan.rejections,
        previews=plan.previews,
        writes=writes,
        usage=(*paid, *counted(scope, step, asking.notes)),
        refused=plan.refused,
        **_told(scope, begun),
    )


def _answered_by(scope: RunScope, done: ReplyDone) -> str:
    name = scope.model.name
    if done.answered_by is None or done.answered_by == name:
        return name
    log_event("model.fallback", session_id=scope.session.session_id, model=name, answered_by=done.answered_by)
    return done.answered_by


def _metadata(scope: RunScope, reply: AssistantMessage) -> dict[str, JSON]:
    """Record in the transcript that a summary could not be made, so that later steps do not ask for it each time."""
    failed_at = None if scope.shown is None else scope.shown.failed_at
    return reply.metadata if failed_at is None else {**reply.metadata, NOT_SUMMARISED: failed_at}


def _told(scope: RunScope, begun: int) -> dict[str, Any]:
    """What the model was told before it replied, for the commit to add to the transcript, and which try asked."""
    return {
        "writer": scope.writer.writer,
        "begun_at": begun,
        "notices": tuple(scope.carried.told_with_reply),
        "companions": scope.carried.settled_companions,
        "entries": scope.carried.news_changes,
    }


async def _surrounded(asking: _Asking, request: ModelRequest, stream: ReplyStream) -> ReplyDone:
    """Ask the model inside the hooks that surround model calls."""
    scope = asking.scope
    clock, name = scope.services.clock, scope.model.name
    begun = clock.now_ms()
    with surrounding(scope, asking.step, AroundLLMCallEvent(model=name, request=request)) as around:
        around.begin()
        done = await _with_retries(asking, request, stream)
        around.outcome = AfterLLMCallEvent(
            model=done.answered_by or name,
            reply=done.reply,
            usage=done.usage,
            duration_ms=clock.now_ms() - begun,
        )
    return done


async def _with_retries(asking: _Asking, request: ModelRequest, stream: ReplyStream) -> ReplyDone:
    """Ask until there is a reply or no hope of one. What a failed call streamed is discarded for every reader."""
    scope, step = asking.scope, asking.step
    options = scope.services.options
    failures = 0
    while True:
        try:
            with Contained(f"Model {scope.model.name!r}"):
                return await stream.run(request)
        except ContextTooLongError:
            fewer = None
            if scope.shown is not None:
                fewer = await fewer_messages(scope, scope.shown, step, asking.draft.writes())
            if fewer is None:
                raise
            await check_budgets(scope)
            asking.look_again()
            request = msgspec.structs.replace(request, **await _chosen(asking, fewer))
            stream.reset()
            await undisturbed(scope.discard_step(step))
        except ModelError as problem:
            failures += 1
            wished = problem.retry_after or 0
            if not problem.retryable or failures > options.model_retries or wished > options.longest_retry_seconds:
                raise
            backoff = options.first_retry_seconds * 2 ** (failures - 1)
            wait = max(wished, backoff * scope.services.jitter())
            log_event("model.retry", session_id=scope.session.session_id, step=step, code=problem.code, wait=wait)
            await _tell_retry(scope, step, problem, failures, wait)
            stream.reset()
            # A stop between two writers would leave the run without one.
            await undisturbed(scope.discard_step(step))
            await scope.services.sleep(wait)


async def _tell_retry(scope: RunScope, step: int, problem: ModelError, failures: int, wait: float) -> None:
    if scope.hooks.wants("on_llm_retry"):
        told = LLMRetryEvent(
            model=scope.model.name,
            code=problem.code,
            error=said_by(problem),
            failures=failures,
            wait_seconds=wait,
        )
        await fire(scope, run_info(scope, step), told)


async def _failed(scope: RunScope, ask: Ask, failure: Failure) -> RunFailed:
    await scope.note(ask.step, ASKING, Note(failure=failure))
    return RunFailed(code=failure.code)
