"""Keeping a conversation within what its model can read: the oldest part is summarised once, and stays stored."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from helix_agents.agent.compaction import Compaction
from helix_agents.agent.failures import Contained, ControlFlow, FailRun
from helix_agents.agent.hook_events import AfterLLMCallEvent, AroundLLMCallEvent, BeforeLLMCallEvent, HookEvent
from helix_agents.domain.errors import ContextTooLongError, HelixError, ModelError
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.parts import in_words, result_in_words
from helix_agents.domain.queued import asks_for_a_turn, said_last
from helix_agents.domain.recollections import is_recollection
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.summaries import summarised_by, summary_message
from helix_agents.domain.texts import storable
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites, WriteOp
from helix_agents.engine.desk import COMPACTING, Note
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.shown import BYTES_PER_TOKEN, Shown, about_tokens
from helix_agents.engine.steps.spending import check_budgets
from helix_agents.engine.user_code import fire_with_draft, surrounding
from helix_agents.ports.llm import LLMAdapter, ModelRequest, ModelSettings, ReplyDone

# The threshold divided by this is the least number of tokens that is worth summarising.
LEAST_GAIN = 8
# After a failed summary, the conversation must grow by the threshold divided by this before another is tried.
GROWTH = 4
# How often the part to be summarised is halved because it is itself more than the model reads.
MOST_HALVINGS = 5
MOST_CHARACTERS_OF_A_RESULT = 20_000
LEAST_OF_WHAT_IS_WANTED = 400

_OPENING = "What happened so far in this conversation, in short:"
_LATEST = "What the user said last before this, word for word:"


async def messages_to_show(scope: RunScope, shown: Shown, step: int) -> Sequence[Message]:
    """The messages that the model sees in this step; if they would be too many, the oldest part is summarised first."""
    compaction = scope.agent.compaction
    shown.follow()
    if compaction is not None and shown.tokens > compaction.above_tokens and not _was_asked_for(shown, compaction):
        worth = compaction.above_tokens // LEAST_GAIN
        with scope.stop.cutting():
            await _compact(scope, step, compaction, shown, keep_tokens=compaction.kept, worth_tokens=worth)
    return shown.follow()


def _was_asked_for(shown: Shown, compaction: Compaction) -> bool:
    """Whether a summary of about the same messages failed before: a model that is down is not asked in every step."""
    return shown.failed_at is not None and shown.tokens < shown.failed_at + compaction.above_tokens // GROWTH


async def fewer_messages(scope: RunScope, shown: Shown, step: int, written: StepWrites) -> Sequence[Message] | None:
    """The messages to show after the model refused the step as too long; None if they cannot be fewer. `written` is
    what hooks have written in this step; it is kept with the summary, which comes after it."""
    compaction = scope.agent.compaction
    if compaction is None:
        return None
    keep = min(compaction.kept, shown.tokens // 4)
    is_less = await _compact(scope, step, compaction, shown, keep_tokens=keep, written=written)
    return shown.follow() if is_less else None


async def _compact(
    scope: RunScope,
    step: int,
    compaction: Compaction,
    shown: Shown,
    *,
    keep_tokens: int,
    worth_tokens: int = 0,
    written: StepWrites = NO_WRITES,
) -> bool:
    """Have the oldest messages summarised. The summary waits for the step's commit, and a repeated effect finds it.

    Raises:
        FailRun: a hook wants the run to fail.
    """
    messages = shown.follow()
    until = shown.cut(keep_tokens)
    size = sum(map(about_tokens, messages[:until]))
    if until is None or size < worth_tokens:
        return False
    about: dict[str, Any] = {"session_id": scope.session.session_id, "step": step}
    summaries = _Summaries(scope, step, compaction, written)
    # A step may try once of its own accord, and again after the model has refused it.
    none = f"{COMPACTING}none_{'yet' if worth_tokens else 'refused'}"
    try:
        # Recollections are left out: they are told again when they matter, in their current form, if they still exist.
        text = await summaries.summarise([each for each in messages[:until] if not is_recollection(each)])
    except (Exception, ControlFlow) as problem:
        if isinstance(problem, FailRun) or (isinstance(problem, HelixError) and not isinstance(problem, ModelError)):
            if spent := summaries.noted().usage:
                await scope.note(step, none, Note(usage=spent))
            raise
        log_exception("history.compaction_failed", problem, **about)
        return await _gave_up(scope, step, shown, summaries, none)
    summarised = shown.summarised(until)
    if not any(map(asks_for_a_turn, messages[until:])):
        text += _latest_words(scope.transcript[: summarised.messages], compaction.kept)
    summary = summary_message(f"{_OPENING}\n\n{text}", summarised)
    if about_tokens(summary) >= min(size, compaction.above_tokens):
        log_event("history.summary_too_long", level=logging.WARNING, **about)
        return await _gave_up(scope, step, shown, summaries, none)
    await scope.note(step, f"{COMPACTING}{summarised.messages}", summaries.noted(summary))
    log_event("history.compacted", **about, messages=summarised.messages)
    return True


async def _gave_up(scope: RunScope, step: int, shown: Shown, summaries: "_Summaries", name: str) -> bool:
    """Record that there is no summary, and count what the attempt used in a note of this name."""
    shown.failed_at = shown.tokens
    spent = summaries.noted()
    if spent.usage or spent.writes:
        await scope.note(step, name, spent)
    return False


class _Summaries:
    """The model that writes an agent's summaries, what that used, and what the hooks around it wrote, after what they
    had written before."""

    def __init__(self, scope: RunScope, step: int, compaction: Compaction, written: StepWrites) -> None:
        self._scope = scope
        self._step = step
        if compaction.model is None:
            self._model: LLMAdapter = scope.model
            settings = msgspec.structs.replace(scope.agent.settings, stop_sequences=(), tool_choice=None)
        else:
            self._model = scope.services.adapter_of(compaction.model)
            settings = ModelSettings()
        self._written: list[WriteOp] = list(written.ops)
        self._usage: list[UsageEntry] = []
        self._request = ModelRequest(
            agent_type=scope.agent.name,
            session_id=scope.session.session_id,
            run_id=scope.run.run_id,
            step=step,
            instructions=compaction.instructions,
            messages=(),
            settings=compaction.settings or settings,
        )

    async def summarise(self, messages: Sequence[Message], halvings: int = MOST_HALVINGS) -> str:
        """A short account of what was said; messages that are too long for this model as well are summarised in parts.

        Raises:
            ModelError: there is no summary.
            FailRun: a hook wants the run to fail.
            BudgetExhaustedError, PriceUnknownError: no further part may be asked for.
        """
        try:
            return await self._ask("\n\n".join(_told(messages)))
        except ContextTooLongError:
            if len(messages) < 2 or not halvings:
                raise
        half = len(messages) // 2
        begins = await self.summarise(messages[:half], halvings - 1)
        return await self.summarise([UserMessage(content=begins, hidden=True), *messages[half:]], halvings - 1)

    def noted(self, *made: UserMessage) -> Note:
        """What the commit needs to know about it."""
        return Note(notices=made, usage=tuple(self._usage), writes=StepWrites(ops=tuple(self._written)))

    async def _ask(self, told: str) -> str:
        if self._usage:
            # A summary in parts takes many calls.
            await check_budgets(self._scope, self._usage)
        # As text and without tools: some providers reject tool calls in a request that offers no tools.
        request = msgspec.structs.replace(self._request, messages=(UserMessage(content=told),))
        scope, name = self._scope, self._model.name
        await self._tell(BeforeLLMCallEvent(model=name, request=request, purpose="summary"))
        surrounded = AroundLLMCallEvent(model=name, request=request, purpose="summary")
        with surrounding(scope, self._step, surrounded) as around:
            around.begin()
            begun = scope.services.clock.now_ms()
            with Contained(f"Model {name!r}"):
                done = await self._answer(request)
            took = scope.services.clock.now_ms() - begun
            about: dict[str, Any] = {"model": done.answered_by or name, "duration_ms": took, "purpose": "summary"}
            answered = around.outcome = AfterLLMCallEvent(reply=done.reply, usage=done.usage, **about)
        source = {"source_type": "tokens", "source_name": answered.model, "tokens": done.usage}
        self._usage.append(scope.usage_entry(self._step, **source, amount=took))
        await self._tell(answered)
        text = storable(done.reply.text).strip()
        if text and done.reply.stop_reason != "length":
            return text
        what = "is cut off at the token limit" if text else "says nothing"
        raise ModelError(name, f"its summary {what}")

    async def _answer(self, request: ModelRequest) -> ReplyDone:
        async with aclosing(self._model.ask(request)) as events:
            async for event in events:
                if isinstance(event, ReplyDone):
                    return event
        raise ModelError(self._model.name, "the stream ended without a whole reply")

    async def _tell(self, event: HookEvent) -> None:
        left = await fire_with_draft(self._scope, self._step, event, StepWrites(ops=tuple(self._written)))
        self._written.extend(left.writes.ops)
        self._usage.extend(left.usage)


def _latest_words(before: Sequence[Message], keep_tokens: int) -> str:
    """The user's latest message verbatim, with what the turn took in since, so that the model keeps its task in the
    user's own words."""
    said = said_last(before)
    if not said:
        return ""
    most = max(LEAST_OF_WHAT_IS_WANTED, min(keep_tokens * BYTES_PER_TOKEN, MOST_CHARACTERS_OF_A_RESULT))
    words = "\n\n".join(map(_words, said))
    return f"\n\n{_LATEST}\n\n{_shortened(words, most)}"


def _told(messages: Sequence[Message]) -> Iterator[str]:
    """A conversation as text."""
    for message in messages:
        match message:
            case UserMessage(hidden=hidden):
                is_summary = summarised_by(message) is not None
                who = "Summary of what came before" if is_summary else "Note to the assistant" if hidden else "User"
                yield f"{who}: {_words(message)}"
            case AssistantMessage(text=text, tool_calls=calls):
                for made in message.provider_calls:
                    yield f"{made.name}, asked with {_json(made.arguments)}, gave {_shortened(_json(made.result))}"
                if text:
                    yield f"Assistant: {text}"
                for call in calls:
                    yield f"Assistant calls {call.name} with {_json(call.arguments)}"
            case ToolMessage(tool_name=name, content=content, in_parts=in_parts, error=error):
                said = _json(result_in_words(content, in_parts=in_parts))
                yield f"{name} {'failed' if error else 'answered'}: {_shortened(said)}"


def _words(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return in_words(message.content)


def _json(value: JSON) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _shortened(text: str, most: int = MOST_CHARACTERS_OF_A_RESULT) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"
