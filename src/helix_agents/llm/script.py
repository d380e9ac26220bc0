"""What a scripted model says: texts, calls, whole replies, the final output, or an error."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from helix_agents.domain.errors import ModelError
from helix_agents.domain.messages import AssistantMessage, ProviderCall, Source, Thinking, ToolCall, in_spoken_order
from helix_agents.domain.records import JSON, Record, encode
from helix_agents.domain.usage import TokenCount
from helix_agents.ports.llm import (
    FINISH_TOOL,
    ModelEvent,
    ModelRequest,
    ProviderCallEnded,
    ProviderCallInput,
    ProviderCallStarted,
    ReplyDone,
    StopReason,
    TextPiece,
    ThinkingPiece,
    ToolArgumentsPiece,
    ToolCallEnded,
    ToolCallStarted,
)


class Call(Record):
    """One tool call of a script; arguments given as text are sent unchanged, valid JSON or not."""

    name: str
    arguments: dict[str, JSON] | str = {}
    id: str | None = None


class ProviderAct(Record):
    """One call of a script that the model's provider carries out itself."""

    name: str
    arguments: dict[str, JSON] | str = {}
    result: JSON = None
    error: bool = False
    id: str | None = None


class Reply(Record):
    """One whole reply of a script."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    provider_calls: tuple[ProviderAct, ...] = ()
    sources: tuple[Source, ...] = ()
    thinking: tuple[Thinking, ...] = ()
    stop_reason: StopReason | None = None
    usage: TokenCount | None = None


Step: TypeAlias = "str | Call | Reply | ModelError | Callable[[ModelRequest], Step]"
"""One step of a script. A function is called when its turn comes and returns any other step."""

Said: TypeAlias = str | Call | Reply


class ScriptExhaustedError(ModelError):
    """A scripted model was asked for more replies than its script has."""

    code = "script_exhausted"


def call(name: str, arguments: dict[str, JSON] | str | None = None, *, id: str | None = None) -> Call:
    """A reply that calls one tool. Without an id, the call gets one from its position in the script."""
    return Call(name=name, arguments={} if arguments is None else arguments, id=id)


def provider_call(
    name: str,
    arguments: dict[str, JSON] | str | None = None,
    *,
    result: JSON = None,
    error: bool = False,
    id: str | None = None,
) -> ProviderAct:
    """A call that the model's provider carries out itself, for `reply(provider_calls=[…])`."""
    return ProviderAct(name=name, arguments=arguments or {}, result=result, error=error, id=id)


def reply(
    text: str = "",
    *,
    calls: Sequence[Call] = (),
    provider_calls: Sequence[ProviderAct] = (),
    sources: Sequence[Source] = (),
    thinking: str | Thinking | Sequence[Thinking] = (),
    stop_reason: StopReason | None = None,
    usage: TokenCount | None = None,
) -> Reply:
    """A reply of several parts: thinking, then what the provider does itself, then text, then calls to be made in
    parallel. `sources` are what the text refers to."""
    if isinstance(thinking, str):
        thinking = Thinking(text=thinking)
    blocks = (thinking,) if isinstance(thinking, Thinking) else tuple(thinking)
    return Reply(
        text=text,
        calls=tuple(calls),
        provider_calls=tuple(provider_calls),
        sources=tuple(sources),
        thinking=blocks,
        stop_reason=stop_reason,
        usage=usage,
    )


def finish(output: dict[str, JSON] | str, *, id: str | None = None) -> Call:
    """A reply that submits the structured output of an agent.

    Submit an output that is not a single object, such as a list, a `Literal` or a union, as `finish({"result": …})`. A
    text stands for the arguments exactly as a model wrote them, which need not be valid JSON.
    """
    return Call(name=FINISH_TOOL, arguments=output, id=id)


def stream_reply(said: Said, request: ModelRequest, *, number: int, chunk: int, model: str) -> Iterator[ModelEvent]:
    """A reply in pieces of at most `chunk` characters, followed by the whole. `number` is used for the ids of calls."""
    whole = _whole(said)
    message = _message(whole, number, model)
    for part in in_spoken_order(message):
        match part:
            case Thinking(text=thought, signature=signature):
                for piece in _pieces(thought, chunk):
                    yield ThinkingPiece(delta=piece)
                yield ThinkingPiece(done=True, signature=signature)
            case ProviderCall():
                yield ProviderCallStarted(id=part.id, name=part.name)
                yield ProviderCallInput(id=part.id, arguments=part.arguments)
                yield ProviderCallEnded(id=part.id, result=part.result, error=part.error)
            case str():
                for piece in _pieces(part, chunk):
                    yield TextPiece(delta=piece)
    for made in message.tool_calls:
        yield ToolCallStarted(id=made.id, name=made.name)
        for piece in _pieces(_as_text(made.arguments), chunk):
            yield ToolArgumentsPiece(id=made.id, delta=piece)
        yield ToolCallEnded(id=made.id)
    yield ReplyDone(reply=message, usage=whole.usage or _usage(message, request))


def _whole(said: Said) -> Reply:
    match said:
        case str():
            return Reply(text=said)
        case Call():
            return Reply(calls=(said,))
        case Reply():
            return said


def _message(whole: Reply, number: int, model: str) -> AssistantMessage:
    calls = tuple(
        ToolCall(id=made.id or f"call_{number}_{place}", name=made.name, arguments=made.arguments)
        for place, made in enumerate(whole.calls, start=1)
    )
    provided = tuple(
        ProviderCall(
            id=act.id or f"provider_call_{number}_{place}",
            name=act.name,
            arguments=act.arguments,
            result=act.result,
            error=act.error,
            thoughts_before=len(whole.thinking),
        )
        for place, act in enumerate(whole.provider_calls, start=1)
    )
    return AssistantMessage(
        text=whole.text,
        thinking=whole.thinking,
        tool_calls=calls,
        stop_reason=whole.stop_reason or ("tool_calls" if calls else "stop"),
        model=model,
        provider_calls=provided,
        sources=whole.sources,
    )


def _usage(message: AssistantMessage, request: ModelRequest) -> TokenCount:
    """The same numbers every time: ten tokens per message in, one token per four characters out."""
    prompt = 10 * len(request.messages)
    spoken = len(message.text) + sum(len(_as_text(made.arguments)) for made in message.tool_calls)
    reasoning = _tokens(sum(len(block.text) for block in message.thinking))
    completion = _tokens(spoken) + reasoning
    return TokenCount(prompt=prompt, completion=completion, reasoning=reasoning, total=prompt + completion)


def _tokens(characters: int) -> int:
    return -(-characters // 4)


def _as_text(arguments: dict[str, JSON] | str) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments).decode()


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
