"""The model effect: build the request, stream the reply, plan its calls, and keep all of it until the commit."""

from typing import Any

import msgspec

from helix_agents.agent.failures import Contained, ControlFlow, FailRun
from helix_agents.agent.hook_events import AfterLLMCallEvent, AroundLLMCallEvent, BeforeLLMCallEvent, LLMRetryEvent
from helix_agents.domain.errors import ContextTooLongError, HelixError, InvalidStateError, ModelError
from helix_agents.domain.summaries import summarised_by
from helix_agents.domain.texts import said_by
from helix_agents.engine.children.detached import tell_finished_companions
from helix_agents.engine.desk import ASKING, Failure, Note, RestingReply
from helix_agents.engine.effects import Ask, Reply, RunFailed, Stopped
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import Notes, RunScope
from helix_agents.engine.steps.compacting import fewer_messages, messages_to_show
from helix_agents.engine.steps.news import tell_news
from helix_agents.engine.steps.planning import plan_reply
from helix_agents.engine.steps.stop_watch import undisturbed
from helix_agents.engine.steps.streaming import ReplyStream
from helix_agents.ports.llm import ModelRequest, ReplyDone


async def ask_model(scope: RunScope, ask: Ask) -> Reply | Stopped | RunFailed:
    """Get this step's reply; one that was recorded before is not bought again."""
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
    except (ModelError, InvalidStateError) as problem:
        return await _failed(scope, ask, Failure(problem.code, said_by(problem), problem.retryable))
    except HelixError:
        raise
    except (Exception, ControlFlow) as problem:
        # An adapter or an instruction function broke: asking again would break it again.
        log_exception("model.broken", problem, session_id=scope.session.session_id, step=ask.step)
        return await _failed(scope, ask, Failure("internal_error", f"{type(problem).__name__}: {said_by(problem)}"))


async def _ask(scope: RunScope, step: int) -> Reply | Stopped:
    told = len(scope.notices)
    await tell_finished_companions(scope, step)
    notes = Notes()
    draft = scope.draft()
    context = scope.context(step, draft, notes)
    await tell_news(scope, context, notes)
    messages = scope.transcript if scope.shown is None else await messages_to_show(scope, scope.shown, step)
    if scope.stop.requested.is_set():
        return Stopped()
    request = ModelRequest(
        agent_type=scope.agent.name,
        session_id=scope.session.session_id,
        run_id=scope.run.run_id,
        step=step,
        instructions=await scope.agent.write_instructions(context),
        messages=messages,
        tools=scope.agent.tool_specs,
        settings=scope.agent.settings,
    )
    name = scope.model.name
    if scope.hooks.wants("before_llm_call"):
        await scope.fire(context, BeforeLLMCallEvent(model=name, request=request))
    begun = scope.services.clock.now_ms()
    stream = ReplyStream(scope, step)
    with scope.stop.cutting() as cut:
        asked = _surrounded if scope.hooks.wants("around_llm_call") else _with_retries
        done = await asked(scope, step, request, stream)
        reply, tokens = done.reply, done.usage
        took = scope.services.clock.now_ms() - begun
        if scope.shown is not None:
            scope.shown.was_read(tokens.prompt)
        if done.answered_by not in (None, name):
            log_event("model.fallback", session_id=scope.session.session_id, model=name, answered_by=done.answered_by)
            name = done.answered_by
        if scope.hooks.wants("after_llm_call"):
            await scope.fire(context, AfterLLMCallEvent(model=name, reply=reply, usage=tokens, duration_ms=took))
        plan = await plan_reply(scope, step, reply, notes)
        spent = scope.usage_entry(step, source_type="tokens", source_name=name, tokens=tokens, amount=took)
        resting = RestingReply(
            message=msgspec.structs.replace(reply, id=scope.step_id(step)),
            calls=tuple(plan.calls),
            rejections=plan.rejections,
            previews=plan.previews,
            writes=draft.writes(),
            usage=(spent, *scope.counted(step, notes)),
            **_told(scope, told, begun),
        )
        await scope.said()
        await scope.desk.put_reply(scope.step_id(step), resting)
        return Reply(calls=resting.calls)
    assert cut.happened
    partial = stream.partial()
    if partial is not None:
        await scope.desk.put_reply(scope.step_id(step), RestingReply(message=partial, **_told(scope, told, begun)))
    return Stopped()


def _told(scope: RunScope, before: int, begun: int) -> dict[str, Any]:
    """What the model was told before it replied, which the commit makes part of the transcript, and which try it was
    that asked."""
    return {
        "writer": scope.writer.writer,
        "begun_at": begun,
        # A summary has a note of its own.
        "notices": tuple(each for each in scope.notices[before:] if summarised_by(each) is None),
        "companions": scope.settled_companions,
        "entries": scope.news_changes,
    }


async def _surrounded(scope: RunScope, step: int, request: ModelRequest, stream: ReplyStream) -> ReplyDone:
    """Ask within what hooks put around it."""
    clock, name = scope.services.clock, scope.model.name
    begun = clock.now_ms()
    with scope.around(step, AroundLLMCallEvent(model=name, request=request)) as around:
        around.begin()
        done = await _with_retries(scope, step, request, stream)
        around.outcome = AfterLLMCallEvent(
            model=done.answered_by or name,
            reply=done.reply,
            usage=done.usage,
            duration_ms=clock.now_ms() - begun,
        )
    return done


async def _with_retries(scope: RunScope, step: int, request: ModelRequest, stream: ReplyStream) -> ReplyDone:
    """Ask until there is a reply or no hope of one; what a failed call said is discarded for every reader."""
    options = scope.services.options
    failures = 0
    while True:
        try:
            with Contained(f"Model {scope.model.name!r}"):
                return await stream.run(request)
        except ContextTooLongError:
            fewer = None if scope.shown is None else await fewer_messages(scope, scope.shown, step)
            if fewer is None:
                raise
            request = msgspec.structs.replace(request, messages=fewer)
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
        await scope.fire(scope.info(step), told)


async def _failed(scope: RunScope, ask: Ask, failure: Failure) -> RunFailed:
    await scope.note(ask.step, ASKING, Note(failure=failure))
    return RunFailed(code=failure.code)
