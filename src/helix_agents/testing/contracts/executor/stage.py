"""What every scenario uses: executors opened as other processes would, a clock, and plain words for outcomes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.records import encode
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelEvent
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.requirements.registry import promised_by

PATIENCE = 60.0
"""No scenario waits longer than this for anything, in seconds."""

SESSION = "s-1"

T = TypeVar("T")


NO_GRACE = EngineOptions(cancel_grace_seconds=0.01)

hasty = pytest.mark.parametrize("helix", [NO_GRACE], indirect=True, ids=["hasty"])
"""For scenarios in which a stop cuts a tool that does not listen: it is cut at once, and not after five seconds."""


class OpenExecutor(Protocol):
    """Opens one more executor onto the same data, as another process would: it shares no object with the others.

    It runs on the clock of the scenario, without its own janitor unless one is requested. Settings are those of
    `Executor`; `limits` are those of its store.
    """

    def __call__(self, **settings: Any) -> AbstractAsyncContextManager[Executor]: ...


class OpenParts(Protocol):
    """Opens the bare stores under the executors, as an operator's tool would."""

    def __call__(self) -> Awaitable[Backend]: ...


class ScenarioContract(Contract):
    """Gives each scenario a first executor, and the stores beneath it for what only an operator does."""

    port = "executor"
    requirements = promised_by(
        "janitor",
        {"janitors.survive-a-kill": "What a janitor process that is killed had begun is finished by the others, once."},
        several_processes=True,
    )

    @pytest.fixture
    def open_executor(self) -> OpenExecutor:
        """For you to implement."""
        raise NotImplementedError("a concrete class gives the fixture open_executor")

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        """For you to implement."""
        raise NotImplementedError("a concrete class gives the fixture open_parts")

    @pytest.fixture
    async def helix(self, open_executor: OpenExecutor, request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
        """The executor that most scenarios start with; a `hasty` one if the scenario says so."""
        async with open_executor(options=getattr(request, "param", None)) as executor:
            yield executor

    @pytest.fixture
    async def parts(self, open_parts: OpenParts) -> AsyncIterator[Backend]:
        """The stores beneath the executors."""
        async with await open_parts() as parts:
            yield parts


class Gate:
    """Holds every caller until it is opened; it is reached when this many have come."""

    def __init__(self, expected: int = 1) -> None:
        self._missing = expected
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self) -> None:
        """Arrive, and wait."""
        self._missing -= 1
        if self._missing <= 0:
            self.reached.set()
        await self.opened.wait()

    async def until_reached(self) -> None:
        """Wait until all expected callers are held here."""
        await within(self.reached.wait())


class PieceGate(Gate):
    """Holds a scripted model before its n-th piece, as its `pace`; earlier and later pieces pass."""

    def __init__(self, piece: int) -> None:
        super().__init__()
        self._left = piece

    async def __call__(self, event: ModelEvent) -> None:
        self._left -= 1
        if self._left == 0:
            await self.wait()


def scripted(script: Sequence[Any], fields: Mapping[str, Any], **defaults: Any) -> AnyAgent:
    """An agent that follows a script; `fields` override the defaults of a scenario."""
    settings: dict[str, Any] = {"model": ScriptedModel(script), **defaults, **fields}
    return Agent(**settings)


async def within(waiting: Awaitable[T]) -> T:
    """Wait, but not forever."""
    async with asyncio.timeout(PATIENCE):
        return await waiting


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Check repeatedly until something holds that is not announced."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  # what another process does sets no event here
            await asyncio.sleep(0.01)


async def ended(handle: RunHandle[Any]) -> RunResult[Any]:
    """How the run ended."""
    return await within(handle.result())


async def completed(handle: RunHandle[Any]) -> Any:
    """The output of a run that must complete."""
    result = await ended(handle)
    assert isinstance(result, Completed), result
    return result.output  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


async def suspended(handle: RunHandle[Any]) -> Suspended:
    """A run that must wait for an answer."""
    result = await ended(handle)
    assert isinstance(result, Suspended), result
    return result


async def failed(handle: RunHandle[Any]) -> Failed:
    """A run that must fail."""
    result = await ended(handle)
    assert isinstance(result, Failed), result
    return result


async def interrupted(handle: RunHandle[Any]) -> Interrupted:
    """A run that must end as interrupted."""
    result = await ended(handle)
    assert isinstance(result, Interrupted), result
    return result


async def chunks_of(handle: RunHandle[Any]) -> list[StreamChunk]:
    """All chunks of a run, to its end."""

    async def read() -> list[StreamChunk]:
        return [chunk async for chunk in handle.stream()]

    return await within(read())


async def transcript(helix: Executor, session_id: str = SESSION) -> list[Message]:
    """The conversation, oldest message first; a provider must accept it unless calls are open."""
    found: list[Message] = []
    while True:
        page = await helix.sessions.messages(session_id, offset=len(found), limit=200)
        found.extend(stored.message for stored in page.items)
        if not page.has_more:
            return found[::-1]


async def spoken(helix: Executor, session_id: str = SESSION) -> list[str]:
    """The conversation in one line per message; its calls and results pair up."""
    messages = await transcript(helix, session_id)
    assert_legal(messages)
    return lines(messages)


def result_at(messages: Sequence[Message], place: int) -> ToolMessage:
    """The message at this position, which has to be a result."""
    message = messages[place]
    assert isinstance(message, ToolMessage), message
    return message


async def runs_of(helix: Executor, session_id: str = SESSION) -> list[RunRecord]:
    """The runs of a session, oldest first."""
    return list((await helix.sessions.runs(session_id)).items)[::-1]


def lines(messages: Iterable[Message]) -> list[str]:
    """Each message on one line: who speaks, what is said, which calls are made and their results."""
    return [_line(message) for message in messages]


def _line(message: Message) -> str:
    match message:
        case UserMessage(hidden=True):
            return f"hidden: {message.metadata.get('helix', message.content)}"
        case UserMessage():
            return f"user: {message.content}"
        case AssistantMessage():
            calls = ", ".join(f"{call.name}#{call.id}" for call in message.tool_calls)
            cut = f" ({message.interrupted})" if message.interrupted else ""
            return f"assistant: {message.text}" + (f"[{calls}]" if calls else "") + cut
        case ToolMessage(error=True):
            return f"error {message.tool_name}#{message.tool_call_id}: {message.code}"
        case ToolMessage():
            content = message.content if isinstance(message.content, str) else encode(message.content).decode()
            return f"result {message.tool_name}#{message.tool_call_id}: {content}"


def assert_legal(messages: Iterable[Message]) -> None:
    """Every call is followed by its result, in call order, before anything else is said."""
    owed: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert owed, f"result of {message.tool_call_id} follows no call"
            assert message.tool_call_id == owed.pop(0)
        else:
            assert not owed, f"calls {owed} have no results"
            owed = [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []
    assert not owed, f"calls {owed} have no results"
