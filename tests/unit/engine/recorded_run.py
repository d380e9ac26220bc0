"""Plays a made-up run into a state store and its stream, as the engine would, with a moment after every event."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from helix_agents.domain import chunks as kinds
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import StartRun, StepCommit
from helix_agents.domain.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.runs import Fence, RunUpdate
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.streams import StreamAppend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager, StreamWriter

SESSION = "s-1"


class Call(msgspec.Struct, frozen=True):
    """One call of a reply and how it ends; the results come in the order of `rank`."""

    arguments: dict[str, int]
    result: Any
    rank: int
    fails: bool


class Step(msgspec.Struct, frozen=True):
    """One step: attempts that were discarded, then the one that was committed, perhaps after waiting for somebody."""

    discarded: list[list[str]]
    deltas: list[str]
    thoughts: list[str]
    calls: list[Call]
    waits_for: int | None


WORDS = st.sampled_from(["a", "b ", "ä", "🎈", "long " * 5])
CALLS = st.lists(
    st.builds(
        Call,
        st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 9), max_size=2),
        st.sampled_from(["text", {"n": 1}, [None]]),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=3,
)
STEPS = st.lists(
    st.builds(
        Step,
        st.lists(st.lists(WORDS, min_size=1, max_size=3), max_size=2),
        st.lists(WORDS, min_size=1, max_size=4),
        st.lists(WORDS, max_size=2),
        CALLS,
        st.none() | st.integers(0, 2),
    ),
    min_size=1,
    max_size=4,
)


class Recording:
    """The run as it goes: `moments` yields after everything that anybody could see or that could be lost."""

    def __init__(self, store: SessionStateStore, streams: StreamManager) -> None:
        self._store = store
        self._streams = streams
        self._rides = streams.shares_transactions_with(store)
        self._run = "r-1"
        self._turn = 1
        self._said = 0
        self._writer: StreamWriter | None = None

    async def moments(self, steps: list[Step]) -> AsyncIterator[None]:
        question = UserMessage(content="Go")
        await self._store.start_run(
            StartRun(session_id=SESSION, run_id=self._run, create=CreateSession(), append_messages=(question,))
        )
        yield
        await self._open_writer(1)
        yield
        await self._say(kinds.RunStarted(turn=1, **self._header(0)))
        yield
        for number, step in enumerate(steps, 1):
            async for _ in self._play(number, step):
                yield
        await self._writing.close()
        await self._streams.end_stream(SESSION, self._run, status="completed")
        yield

    async def _play(self, number: int, step: Step) -> AsyncIterator[None]:
        for attempt in step.discarded:
            for word in attempt:
                await self._say(kinds.TextDelta(delta=word, **self._header(number)))
                yield
            await self._writing.flush()
            await self._open_writer(number)
            yield
        for chunk in self._reply_chunks(number, step):
            await self._say(chunk)
            yield
        calls = [f"call-{number}-{n}" for n in range(len(step.calls))]
        waiting = step.waits_for if step.waits_for is not None and step.waits_for < len(calls) else None
        order = sorted(range(len(calls)), key=lambda n: (step.calls[n].rank, n))
        for n in order:
            if n != waiting:
                await self._say(self._result_chunk(number, calls[n], step.calls[n]))
                yield
        messages: list[Message] = [_reply(step, calls)]
        if waiting is not None:
            async for _ in self._wait_for_somebody(number, step, calls, waiting):
                yield
            messages = []
        messages += [_result(call_id, call) for call_id, call in zip(calls, step.calls, strict=True)]
        await self._commit(number, messages, round_=0 if waiting is None else 1)
        yield
        await self._say(
            kinds.StepCommitted(step_id=str(number), checkpoint_id="c", message_count=0, **self._header(number))
        )
        yield

    async def _wait_for_somebody(self, number: int, step: Step, calls: list[str], waiting: int) -> AsyncIterator[None]:
        """Commit the reply, hold the results there are, end the run, and go on in a new one with the answer."""
        held = tuple(
            StagedChange(step_id=str(number), tool_call_id=calls[n], index=n, message=_result(calls[n], call))
            for n, call in enumerate(step.calls)
            if n != waiting
        )
        await self._commit(
            number,
            [_reply(step, calls)],
            state={"suspended_step_id": str(number)},
            stage=held,
            promote_staging=False,
            run=RunUpdate(status="suspended_client_tool"),
        )
        yield
        await self._say(kinds.RunPaused(reason="client_tool", **self._header(number)))
        yield
        await self._writing.close()
        await self._streams.pause_stream(SESSION, self._run)
        yield
        self._turn += 1
        self._run = f"r-{self._turn}"
        await self._store.start_run(
            StartRun(session_id=SESSION, run_id=self._run, keep_suspension=True, keep_step_count=True)
        )
        yield
        await self._open_writer(number)
        yield
        await self._say(self._result_chunk(number, calls[waiting], step.calls[waiting]))
        yield

    async def _commit(
        self,
        number: int,
        messages: list[Message],
        *,
        round_: int = 0,
        state: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        record = replace(await self._store.load_state(SESSION), **(state or {"suspended_step_id": None}))
        async with self._stored_chunks() as (stream, sequence):
            commit = StepCommit(fence=Fence(run_id=self._run), step=number, round=round_, stream=stream, **fields)
            meta = CheckpointMeta(step_id=str(number), step_count=number, stream_sequence=sequence)
            await self._store.save_state_and_promote_staging(SESSION, record, messages, meta, commit=commit)

    @asynccontextmanager
    async def _stored_chunks(self) -> AsyncIterator[tuple[StreamAppend | None, int]]:
        """The step's chunks: in the commit's transaction, or stored before it."""
        if self._rides:
            # What nobody flushed yet rides; the rest has its numbers already.
            async with self._writing.take() as stream:
                yield stream, self._writing.sequence
        else:
            yield None, await self._writing.flush()

    async def _open_writer(self, step: int) -> None:
        self._writer = await self._streams.create_writer(SESSION, self._run, "writer", turn=self._turn, step=step)

    async def _say(self, chunk: kinds.StreamChunk) -> None:
        await self._writing.write(chunk)
        self._said += 1
        if not self._rides or self._said % 2:
            await self._writing.flush()

    @property
    def _writing(self) -> StreamWriter:
        assert self._writer is not None
        return self._writer

    def _header(self, step: int) -> dict[str, Any]:
        return {"session_id": SESSION, "run_id": self._run, "agent_type": "writer", "step": step}

    def _reply_chunks(self, number: int, step: Step) -> list[kinds.StreamChunk]:
        header = self._header(number)
        said: list[kinds.StreamChunk] = [
            kinds.ThinkingChunk(content=word, is_complete=True, **header) for word in step.thoughts
        ]
        said += [kinds.TextDelta(delta=word, **header) for word in step.deltas]
        for n, call in enumerate(step.calls):
            of_call = {"tool_call_id": f"call-{number}-{n}", **header}
            text = msgspec.json.encode(call.arguments).decode()
            said.append(kinds.ToolArgStreamStart(tool_name="search", **of_call))
            said += [kinds.ToolArgStreamDelta(delta=part, **of_call) for part in (text[:4], text[4:])]
            said += [kinds.ToolArgStreamEnd(**of_call), kinds.ToolStart(tool_name="search", **of_call)]
        return said

    def _result_chunk(self, number: int, call_id: str, call: Call) -> kinds.StreamChunk:
        of_call: dict[str, Any] = {"tool_call_id": call_id, "tool_name": "search", **self._header(number)}
        if call.fails:
            return kinds.ToolError(error="failed", code="broken", **of_call)
        return kinds.ToolEnd(result=call.result, **of_call)


def _reply(step: Step, calls: list[str]) -> AssistantMessage:
    return AssistantMessage(
        text="".join(step.deltas),
        thinking=tuple(Thinking(text=word, signature="signed by the provider") for word in step.thoughts),
        tool_calls=tuple(
            ToolCall(id=call_id, name="search", arguments=call.arguments)
            for call_id, call in zip(calls, step.calls, strict=True)
        ),
        model="a model",
        stop_reason="end_turn",
    )


def _result(call_id: str, call: Call) -> ToolMessage:
    if call.fails:
        return ToolMessage(tool_call_id=call_id, tool_name="search", content="failed", error=True, code="broken")
    return ToolMessage(tool_call_id=call_id, tool_name="search", content=call.result)
