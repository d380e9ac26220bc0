"""Models that follow a script, so that an agent runs without an API key, the same way every time."""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal, TypeAlias, get_args

from helix_agents.agent.choices import check_choice
from helix_agents.domain.errors import DefinitionError, ModelError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.parts import result_in_words
from helix_agents.domain.records import Record, encode
from helix_agents.domain.summaries import summarised_by
from helix_agents.llm.script import (
    Call,
    ProviderAct,
    Reply,
    Said,
    ScriptExhaustedError,
    Step,
    call,
    finish,
    provider_call,
    reply,
    stream_reply,
)
from helix_agents.ports.llm import LLMAdapter, ModelEvent, ModelRequest, ReplyDone, ToolSpec
from helix_agents.ports.provider_tools import ProviderTool

__all__ = [
    "Asked",
    "Call",
    "ProviderAct",
    "Reply",
    "RoutingScriptedModel",
    "ScriptExhaustedError",
    "ScriptedModel",
    "Step",
    "call",
    "finish",
    "provider_call",
    "reply",
]

By: TypeAlias = Literal["transcript", "calls"]
Script: TypeAlias = Sequence[Step] | Callable[[ModelRequest], Step]
Pace: TypeAlias = Callable[[ModelEvent], Awaitable[None]]

REQUESTS_KEPT = 100
SESSIONS_COUNTED = 1_000


class Asked(Record):
    """One request that a scripted model received, and how many messages it had at that time."""

    request: ModelRequest
    message_count: int

    @property
    def messages(self) -> Sequence[Message]:
        """The messages as they were when the model was asked."""
        return self.request.messages[: self.message_count]

    @property
    def instructions(self) -> str:
        """The system prompt."""
        return self.request.instructions

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools it could call."""
        return self.request.tools

    @property
    def provider_tools(self) -> tuple[ProviderTool, ...]:
        """The tools that its provider would run."""
        return self.request.provider_tools


class ScriptedModel(LLMAdapter):
    """A model that replies as its script says, in several pieces, with usage that never varies.

    `by="transcript"` derives its position from the request: the n-th reply of a session is the n-th step, in whichever
    process it is asked. Errors do not count as replies: those written before a reply are raised first, once each in a
    process. `by="calls"` moves one step further with every call, whoever calls.

    A function in place of the list answers every request. `pace` is awaited before each piece, so a test can hold the
    stream. `requests` has the last hundred requests; `asked` counts them all.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        by: By = "transcript",
        chunk: int = 8,
        pace: Pace | None = None,
    ) -> None:
        if isinstance(script, str):
            raise DefinitionError("ScriptedModel", f"a script is a list of steps: write [{script[:40]!r}].")
        check_choice("ScriptedModel", "by", by, get_args(By))
        if chunk < 1:
            raise ValueError(f"a piece has at least one character, not {chunk}")
        self._name = name
        self._by: By = by
        self._chunk = chunk
        self._pace = pace
        self._place = _Places()
        self._met: dict[tuple[SessionId, int], int] = {}
        self._every = script if callable(script) else None
        self._steps: list[Step] = [] if callable(script) else list(script)
        # The position of each reply in the script: errors are not replies.
        self._replies = [at for at, step in enumerate(self._steps) if not isinstance(step, ModelError)]
        self.asked = 0
        self.requests: deque[Asked] = deque(maxlen=REQUESTS_KEPT)

    @property
    def name(self) -> str:
        return self._name

    def refuse_provider_tools(self, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
        """None: a script can say what any provider's tool does."""
        return None

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the step whose turn it is.

        Raises:
            ModelError: the script says so.
            ScriptExhaustedError: the script has no step left.
        """
        calls_before = self.asked
        self.asked += 1
        self.requests.append(Asked(request=request, message_count=len(request.messages)))
        number = calls_before if self._by == "calls" else self._place.of(request)
        said = self._resolve(self._step(request, number), request)
        for event in stream_reply(said, request, number=number + 1, chunk=self._chunk, model=self._name):
            if self._pace is not None and not isinstance(event, ReplyDone):
                await self._pace(event)
            yield event

    def _step(self, request: ModelRequest, number: int) -> Step:
        if self._every is not None:
            return self._every
        at = number if self._by == "calls" else self._after_errors(request.session_id, number)
        if at is None or at >= len(self._steps):
            raise ScriptExhaustedError(self._name, self._exhausted(request, number + 1))
        return self._steps[at]

    def _exhausted(self, request: ModelRequest, number: int) -> str:
        length = len(self._steps if self._by == "calls" else self._replies)
        # The likeliest reason is a script for a later turn only, as in a second test step or a branch.
        counts = 'a script counts the replies of the whole conversation; with by="calls", the calls of this object'
        hint = "" if self.asked > 1 else f" ({counts})"
        return (
            f"its script has no step {number}, only {length}{hint}. Session {request.session_id!r} asked for it "
            f"(agent {request.agent_type!r}, step {request.step}); the last message was: {_shown(request.messages)}"
        )

    def _after_errors(self, session_id: SessionId, number: int) -> int | None:
        """The position in the script for this reply: an error that this process has not raised yet, or the reply."""
        if number > len(self._replies):
            return None
        start = self._replies[number - 1] + 1 if number else 0
        at = start + self._met.get((session_id, number), 0)
        if at < len(self._steps) and isinstance(self._steps[at], ModelError):
            self._met[session_id, number] = at - start + 1
        return at

    def _resolve(self, step: Step, request: ModelRequest) -> Said:
        while callable(step):
            step = step(request)
        if isinstance(step, ModelError):
            # A fresh one each time: an error that is raised again carries its first traceback along.
            raise type(step)(*step.args)
        if not isinstance(step, Said):  # pyright: ignore[reportUnnecessaryIsInstance]
            what = "a text, call(…), reply(…), finish(…), an error, or a function that returns one of them"
            raise TypeError(f"a step of a script is {what}, not {type(step).__name__}")
        return step


class RoutingScriptedModel(LLMAdapter):
    """One scripted model per agent type, so that a parent and its children never take each other's steps."""

    def __init__(
        self,
        scripts: Mapping[str, Script],
        *,
        name: str = "scripted",
        by: By = "transcript",
        chunk: int = 8,
        pace: Pace | None = None,
    ) -> None:
        self._name = name
        self.models: dict[str, ScriptedModel] = {
            agent_type: ScriptedModel(script, name=name, by=by, chunk=chunk, pace=pace)
            for agent_type, script in scripts.items()
        }

    @property
    def name(self) -> str:
        return self._name

    def refuse_provider_tools(self, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
        """None: a script can say what any provider's tool does."""
        return None

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream what the asking agent's script says.

        Raises:
            ModelError: the script says so.
            ScriptExhaustedError: the agent has no script, or its script has no step left.
        """
        model = self.models.get(request.agent_type)
        if model is None:
            known = ", ".join(sorted(self.models)) or "none"
            raise ScriptExhaustedError(self._name, f"no script for agent {request.agent_type!r}; there are: {known}")
        async with aclosing(model.ask(request)) as events:
            async for event in events:
                yield event


class _Places:
    """How many replies each session has had, counted from the messages added since it last asked."""

    def __init__(self) -> None:
        self._seen: OrderedDict[SessionId, tuple[RunId, int, int]] = OrderedDict()

    def of(self, request: ModelRequest) -> int:
        messages = request.messages if request.chosen_from is None else request.chosen_from
        run_id, length, replies = self._seen.pop(request.session_id, (request.run_id, 0, 0))
        # Only within one run has the history certainly grown; a new run may have rewound it.
        summarised = summarised_by(messages[0]) if messages else None
        if run_id != request.run_id or length > len(messages) or summarised is not None:
            length, replies = 0, 0 if summarised is None else summarised.replies
        replies += list(map(type, messages[length:])).count(AssistantMessage)
        self._seen[request.session_id] = (request.run_id, len(messages), replies)
        if len(self._seen) > SESSIONS_COUNTED:
            self._seen.popitem(last=False)
        return replies


def _shown(messages: Sequence[Message]) -> str:
    if not messages:
        return "none, the transcript is empty"
    match messages[-1]:
        case UserMessage(content=str() as text):
            said = f"user said {text!r}"
        case UserMessage():
            said = "user sent text and files"
        case AssistantMessage(text=text):
            said = f"assistant said {text!r}"
        case ToolMessage(tool_name=tool, content=content, in_parts=in_parts):
            said = f"tool {tool} answered {encode(result_in_words(content, in_parts=in_parts)).decode()}"
    return said if len(said) <= 300 else f"{said[:300]}…"
