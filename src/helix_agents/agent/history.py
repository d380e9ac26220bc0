"""What of a conversation the model is shown: functions that choose it before each call, and two that are ready-made."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import msgspec

from helix_agents.agent.calling import call_quick, is_generator, name_of
from helix_agents.agent.choices import check_whole
from helix_agents.agent.context import DepsT, RunContext
from helix_agents.agent.state_type import StateT
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.queued import asks_for_a_turn
from helix_agents.domain.records import encode
from helix_agents.domain.summaries import summarised_by
from helix_agents.domain.transcript import as_shown

HistoryProcessor: TypeAlias = Callable[
    [RunContext[StateT, DepsT], Sequence[Message]], Awaitable[Sequence[Message]] | Sequence[Message]
]
"""Chooses what the model is shown: gets the run and the messages, and returns the messages to show instead."""

FORGOTTEN = "This result is no longer shown. Call the tool again if you need it."


@dataclass(frozen=True, kw_only=True)
class ForgetToolResults:
    """Shows old tool results as a short note: `Agent(history_processors=[ForgetToolResults(keep=20)])`.

    Calls, texts and the results of the latest calls stay as they are, and so do results that the model has not read
    yet, and old results that are shorter than the note.

    Args:
        keep: How many of the latest results are always shown.
        batch: How many results are forgotten at once. In between, the beginning of the conversation does not change, so
            a provider's prompt cache keeps working.
        tools: The names of the tools whose results may be forgotten; None means every tool.

    Raises:
        DefinitionError: the settings could not work; the message says why.
    """

    keep: int
    batch: int = 10
    tools: Collection[str] | None = None
    _names: frozenset[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        check_whole("ForgetToolResults", "keep", self.keep, 0)
        check_whole("ForgetToolResults", "batch", self.batch, 1)
        if self.tools is None:
            return
        names = cast("Collection[Any]", self.tools)
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            raise DefinitionError("ForgetToolResults", f"tools={names!r} is not a list of tool names.")
        object.__setattr__(self, "_names", frozenset(self.tools))

    def __call__(self, ctx: RunContext[Any, Any], messages: Sequence[Message]) -> Sequence[Message]:
        results = [at for at, each in enumerate(messages) if isinstance(each, ToolMessage) and self._is_meant(each)]
        older = max(0, len(results) - self.keep)
        replied = max((at for at, each in enumerate(messages) if isinstance(each, AssistantMessage)), default=0)
        forgotten = [at for at in results[: older - older % self.batch] if at < replied]
        if not forgotten:
            return messages
        shown = list(messages)
        for at in forgotten:
            shown[at] = _noted(cast("ToolMessage", shown[at]))
        return shown

    def _is_meant(self, result: ToolMessage) -> bool:
        return self._names is None or result.tool_name in self._names


def _noted(result: ToolMessage) -> ToolMessage:
    # The address of an image is short, but the image itself is not.
    if not result.in_parts and len(encode(result.content)) <= len(FORGOTTEN):
        return result
    return msgspec.structs.replace(result, content=FORGOTTEN, in_parts=False)


@dataclass(frozen=True, kw_only=True)
class LastTurns:
    """Shows only the latest turns of a conversation: `Agent(history_processors=[LastTurns(turns=10)])`.

    A turn begins with what the user says, in one message or several; messages that it took in while it was going belong
    to it. A summary that an agent's `compaction` made stays in front of them.

    Raises:
        DefinitionError: `turns` is less than one.
    """

    turns: int

    def __post_init__(self) -> None:
        check_whole("LastTurns", "turns", self.turns, 1)

    def __call__(self, ctx: RunContext[Any, Any], messages: Sequence[Message]) -> Sequence[Message]:
        has_summary = bool(messages) and summarised_by(messages[0]) is not None
        begins = _beginnings(messages, 1 if has_summary else 0)
        if len(begins) <= self.turns:
            return messages
        return [*messages[: int(has_summary)], *messages[begins[-self.turns] :]]


def _beginnings(messages: Sequence[Message], first: int) -> list[int]:
    """Where turns begin: at each row of user messages of which one is visible; the hidden ones belong to the turn. What
    a turn took in while it was going begins none."""
    begins: list[int] = []
    row: int | None = None
    for at in range(first, len(messages)):
        message = messages[at]
        if not isinstance(message, UserMessage):
            row = None
            continue
        row = at if row is None else row
        if asks_for_a_turn(message) and row not in begins[-1:]:
            begins.append(row)
    return begins


def check_processors(given: Any, subject: str) -> None:
    """Reject anything but a list of functions that can be called with a run and its messages.

    Raises:
        DefinitionError: says what is wrong with which of them.
    """
    if given is None:
        return
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        problem = f"history_processors={given!r} is not a list; write history_processors=[…]."
        raise DefinitionError(subject, problem)
    for each in cast("Sequence[object]", given):
        if isinstance(each, type):
            problem = f"history_processors has the class {each.__name__}; call it, as in {each.__name__}(…)."
            raise DefinitionError(subject, problem)
        if not callable(each):
            problem = f"history_processors has {each!r}, which is not a function of a run and its messages."
            raise DefinitionError(subject, problem)
        if is_generator(each):
            problem = f"the history processor {name_of(each)!r} is a generator; return a list of messages instead."
            raise DefinitionError(subject, problem)


async def processed(
    processors: Sequence[HistoryProcessor[Any, Any]], ctx: RunContext[Any, Any], messages: Sequence[Message]
) -> Sequence[Message]:
    """What is shown of the messages after all processors, made legal for a provider.

    Raises:
        Exception: whatever a processor raised.
        TypeError: a processor returned something other than messages.
        ValueError: a processor left nothing to show.
    """
    shown: Sequence[Message] = tuple(messages)
    for each in processors:
        what = f"The history processor {name_of(each)!r} of {ctx.agent!r}"
        shown = _checked(what, await call_quick(what, each, ctx, shown))
    return as_shown(shown)


def _checked(what: str, returned: Any) -> tuple[Message, ...]:
    kind = type(returned).__name__
    if isinstance(returned, str | Mapping) or not isinstance(returned, Sequence):
        raise TypeError(f"{what} returned a {kind}; it has to return a list of messages")
    shown = tuple(cast("Sequence[Any]", returned))
    for message in shown:
        if not isinstance(message, UserMessage | AssistantMessage | ToolMessage):
            kinds = "UserMessage, AssistantMessage or ToolMessage"
            raise TypeError(f"{what} returned a list with a {type(message).__name__}; each item has to be a {kinds}")
    if not shown:
        raise ValueError(f"{what} returned no message; the model needs at least one")
    return shown
