"""What an agent remembers across conversations: recalled when the user speaks, learned when a turn ends."""

from collections.abc import Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Any

import msgspec

from helix_agents.agent.context import RunContext
from helix_agents.agent.failures import Contained, ControlFlow
from helix_agents.agent.history import processed
from helix_agents.agent.hook_events import AfterLLMCallEvent, AroundLLMCallEvent
from helix_agents.agent.memory import AgentMemory, Lesson
from helix_agents.domain.errors import ModelError
from helix_agents.domain.messages import AssistantMessage, Message, Text, ToolMessage, UserMessage
from helix_agents.domain.queued import asks_for_a_turn
from helix_agents.domain.recollections import (
    REMEMBERED,
    is_learned_from,
    is_recollection,
    recollection_message,
    told_in,
)
from helix_agents.domain.records import JSON
from helix_agents.domain.texts import storable
from helix_agents.domain.transcript import hands_over
from helix_agents.domain.usage import TokenCount, UsageEntry
from helix_agents.engine.desk import REMEMBERING, Note
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.spending import check_budgets
from helix_agents.engine.steps.step_work import StepWork
from helix_agents.engine.user_code import Notes, run_context, surrounding
from helix_agents.ports.llm import LLMAdapter, ModelRequest, ModelSettings, ReplyDone

# How much of a conversation memories are made from, counted from its end.
MOST_CHARACTERS_LEARNED_FROM = 40_000


async def recall(scope: RunScope, context: RunContext[Any, Any]) -> None:
    """Tell the model what it remembers about what the user just said, once for each time the user speaks.

    Whether this is due follows from the transcript, and what was told joins the transcript with the step's commit.

    Raises:
        DefinitionError, Exception: the owner of the memories could not be determined, or a history processor failed.
    """
    memory = scope.agent.memory
    if memory is None or not memory.recalls:
        return
    question = _just_said(scope.transcript)
    if not question:
        return
    shown: Sequence[Message] = scope.transcript if scope.shown is None else scope.shown.follow()
    with scope.stop.cutting():
        if scope.agent.history_processors and told_in(shown):
            # What the model sees no more may be told again.
            shown = await processed(scope.agent.history_processors, context, shown)
        found = await memory.recall(context, question, told_in(shown))
        if found:
            scope.carried.tell_with_reply(recollection_message(found, scope.session.user_id))
            log_event("memory.recalled", session_id=scope.session.session_id, memories=len(found))


def _just_said(transcript: Sequence[Message]) -> str:
    """What the user said since the last reply; empty if a recollection was already told for it. An agent that has just
    taken over also answers what the user said to the one before."""
    said, at = _said_before(transcript, len(transcript))
    if said is None:
        return ""
    results = takewhile(lambda each: isinstance(each, ToolMessage), reversed(transcript[:at]))
    if any(map(hands_over, results)):
        while at and not isinstance(transcript[at - 1], UserMessage):
            at -= 1
        earlier, _ = _said_before(transcript, at)
        said = [*(earlier or ()), *said]
    return "\n".join(filter(None, said))


def _said_before(transcript: Sequence[Message], end: int) -> tuple[list[str] | None, int]:
    """What the user said right before a place, and where that begins; None if a recollection was told for it."""
    said: list[str] = []
    for at in range(end, 0, -1):
        message = transcript[at - 1]
        if not isinstance(message, UserMessage):
            return said[::-1], at
        if is_recollection(message):
            return None, at
        if not message.hidden:
            said.append(_words(message))
    return said[::-1], 0


async def learn(scope: RunScope, work: StepWork) -> None:
    """Have a model look for something to remember in what was said since it last looked, and keep it.

    The turn's last message records what was kept, in the commit that ends the turn. A failure is logged, and the turn
    ends without memories; the next turn is then examined together with this one.
    """
    memory = scope.agent.memory
    if memory is None or memory.learns_every is None or not _may_be_marked(work):
        return
    if scope.carried.remembered is None:
        try:
            await _learn(scope, work, memory)
        except (Exception, ControlFlow) as problem:
            log_exception("memory.not_learned", problem, session_id=scope.session.session_id, step=work.batch.step)
    if scope.carried.remembered is not None:
        work.mark_last(REMEMBERED, list(scope.carried.remembered))


async def _learn(scope: RunScope, work: StepWork, memory: AgentMemory) -> None:
    assert memory.learns_every is not None
    said = _unlearned([*scope.transcript, *work.messages[len(scope.carried.notices) :]])
    if sum(map(asks_for_a_turn, said)) < memory.learns_every:
        return
    step, round_ = work.batch.step, work.batch.round
    context = run_context(scope, step, scope.draft(), Notes())
    lessons = _Lessons(scope, step, memory)
    await check_budgets(scope, () if work.reply is None else work.reply.usage)
    begun = scope.services.clock.now_ms()
    with scope.stop.cutting():
        once = scope.step_id(step)
        lesson = await memory.lesson(context, _told(said), once)
        if lesson is None:
            return
        try:
            answer = await lessons.ask(lesson)
            kept = () if answer is None else await memory.learn(context, lesson, answer, once)
        except (Exception, ControlFlow):
            if lessons.answered:
                # What could not be used is paid for all the same.
                await scope.note(step, REMEMBERING, Note(round=round_, usage=(lessons.spent(begun),)))
            raise
        note = Note(round=round_, usage=(lessons.spent(begun),), remembered=tuple(kept))
        await scope.note(step, REMEMBERING, note)
        log_event("memory.learned", session_id=scope.session.session_id, memories=len(kept))


class _Lessons:
    """The model that looks for something to remember, and what that used."""

    def __init__(self, scope: RunScope, step: int, memory: AgentMemory) -> None:
        if memory.model is None:
            self.model: LLMAdapter = scope.model
            settings = msgspec.structs.replace(scope.agent.settings, stop_sequences=(), tool_choice=None)
        else:
            self.model = scope.services.adapter_of(memory.model)
            settings = ModelSettings()
        self.name = self.model.name
        self.tokens = TokenCount()
        self.answered = False
        self._scope = scope
        self._request = ModelRequest(
            agent_type=scope.agent.name,
            session_id=scope.session.session_id,
            run_id=scope.run.run_id,
            step=step,
            instructions="",
            messages=(),
            settings=memory.settings or settings,
        )

    async def ask(self, lesson: Lesson) -> dict[str, JSON] | None:
        """What the model wants to keep; None if nothing.

        Raises:
            ModelError: there is no whole reply.
        """
        request = msgspec.structs.replace(
            self._request,
            instructions=lesson.instructions,
            messages=(UserMessage(content=lesson.text),),
            tools=(lesson.tool,),
        )
        scope, surrounded = self._scope, AroundLLMCallEvent(model=self.model.name, request=request, purpose="memory")
        # Only hooks that cannot change the state: the step's commit is under way.
        with surrounding(scope, request.step, surrounded) as around:
            around.begin()
            begun = scope.services.clock.now_ms()
            with Contained(f"Model {self.model.name!r}"):
                done = await self._answer(request)
            self.tokens += done.usage
            self.answered = True
            self.name = done.answered_by or self.name
            took = scope.services.clock.now_ms() - begun
            about: dict[str, Any] = {"model": self.name, "duration_ms": took, "purpose": "memory"}
            around.outcome = AfterLLMCallEvent(reply=done.reply, usage=done.usage, **about)
        return self._wanted(done.reply, lesson)

    def spent(self, begun: int) -> UsageEntry:
        """What it used since then, for the commit."""
        took = self._scope.services.clock.now_ms() - begun
        source = {"source_type": "tokens", "source_name": self.name, "tokens": self.tokens}
        return self._scope.usage_entry(self._request.step, **source, amount=took)

    async def _answer(self, request: ModelRequest) -> ReplyDone:
        async with aclosing(self.model.ask(request)) as events:
            async for event in events:
                if isinstance(event, ReplyDone):
                    return event
        raise ModelError(self.model.name, "the stream ended without a whole reply")

    def _wanted(self, reply: AssistantMessage, lesson: Lesson) -> dict[str, JSON] | None:
        call = next((each for each in reply.tool_calls if each.name == lesson.tool.name), None)
        if call is None:
            if reply.stop_reason == "length":
                raise ModelError(self.model.name, "what it wants remembered is cut off at the token limit")
            return None
        if isinstance(call.arguments, dict):
            return call.arguments
        raise ModelError(self.model.name, f"what it wants remembered is not JSON: {call.arguments[:200]!r}")


def _unlearned(messages: Sequence[Message]) -> list[UserMessage | AssistantMessage]:
    """What user and assistant said visibly since memories were last made from the conversation."""
    said: list[UserMessage | AssistantMessage] = []
    for message in reversed(messages):
        if is_learned_from(message):
            break
        match message:
            case AssistantMessage(text=text) if text:
                said.append(message)
            case UserMessage(hidden=False):
                said.append(message)
            case _:
                pass
    return said[::-1]


def _told(said: Sequence[UserMessage | AssistantMessage]) -> str:
    lines = (
        f"Assistant: {each.text}" if isinstance(each, AssistantMessage) else f"User: {_words(each)}" for each in said
    )
    return storable("\n\n".join(lines)[-MOST_CHARACTERS_LEARNED_FROM:])


def _words(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content.strip()
    return "\n".join(part.text for part in message.content if isinstance(part, Text)).strip()


def _may_be_marked(work: StepWork) -> bool:
    return bool(work.messages) and isinstance(work.messages[-1], AssistantMessage | ToolMessage)
