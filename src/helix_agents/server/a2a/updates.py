"""A task as its client follows it: its state, then what the agent says, then how it ended."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.chunks import StepCommitted, StepDiscarded, StreamChunk, StreamResync, TextDelta
from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import RunId
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.a2a.errors import RPCError
from helix_agents.server.a2a.protocol import INTERNAL_ERROR
from helix_agents.server.a2a.tasks import Context, Plain, Task, artifact_of, look_again, read_task, text_artifact
from helix_agents.server.calls import Call
from helix_agents.server.errors import sentence_for
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

# How often a client that follows a queued task checks whether its turn has come.
LOOK_SECONDS = 0.25


def answer(rpc_id: Any, result: Plain) -> Plain:
    """A result in its envelope."""
    return {"jsonrpc": "2.0", "id": rpc_id, "result": result}


def failure(rpc_id: Any, problem: RPCError) -> Plain:
    """An error in its envelope."""
    return {"jsonrpc": "2.0", "id": rpc_id, "error": problem.body}


class Said:
    """Turns what the agent says into pieces of artifacts. When a step is done again, its artifact starts over."""

    def __init__(self, names: Plain, so_far: Task) -> None:
        self._names = names
        self._open: set[str] = {each["artifactId"] for each in so_far.artifacts()}

    def feed(self, chunk: StreamChunk) -> list[Plain]:
        """The updates that one more chunk produces."""
        if chunk.parent_tool_call_id is not None:
            return []
        name = artifact_of(chunk)
        match chunk:
            case TextDelta(delta=delta) if delta:
                begun = name in self._open
                self._open.add(name)
                return [self._piece(name, delta, append=begun)]
            case StepCommitted() if name in self._open:
                self._open.discard(name)
                return [{**self._piece(name, "", append=True), "lastChunk": True}]
            case StepDiscarded():
                taken_back = sorted(self._open)
                self._open.clear()
                return [self._piece(each, "", append=False) for each in taken_back]
            case _:
                return []

    def _piece(self, name: str, text: str, *, append: bool) -> Plain:
        return {**self._names, "artifact": text_artifact(name, text), "append": append}


class Follower:
    """Follows a task until it is over or needs input, whichever process continues it meanwhile. `known` is the task as
    it was last seen."""

    def __init__(self, call: Call, agent: AnyAgent, known: Task) -> None:
        self._call = call
        self._agent = agent
        self._known = known

    async def events(self) -> AsyncGenerator[Plain, None]:
        """The task's current state, then what the agent says, then how it ended."""
        context, task = await look_again(self._call, self._known)
        yield {"task": task.shown()}
        names: Plain = {"taskId": task.id, "contextId": task.session_id}
        if task.state == "TASK_STATE_SUBMITTED":
            context, task = await self._begun(task)
            if task.state == "TASK_STATE_WORKING":
                yield {"task": task.shown()}
        followed: RunId | None = None
        shown: set[str] = set()
        while task.state == "TASK_STATE_WORKING":
            run = await self._call.executor.get_handle(self._agent, task.session_id)
            if run is None or run.run_id == followed:
                raise RPCError(INTERNAL_ERROR, sentence_for("stream_lost"))
            followed = run.run_id
            assert context is not None
            async with aclosing(self._said(run, context, task)) as updates:
                async for update in updates:
                    shown |= _said_in(update)
                    yield update
            # If the task is continued right after its run ends, the new run is followed too.
            context, task = await read_task(self._call, task.id)
        for withdrawn in sorted(shown - {each["artifactId"] for each in task.artifacts()}):
            # It was said, and another reply was asked for in its place.
            yield {"artifactUpdate": {**names, "artifact": text_artifact(withdrawn, ""), "append": False}}
        for artifact in task.output():
            yield {"artifactUpdate": {**names, "artifact": artifact, "append": False, "lastChunk": True}}
        yield {"statusUpdate": {**names, "status": task.status()}}

    async def rest(self) -> Task:
        """The task when it is over or needs input."""
        _, task = await look_again(self._call, self._known)
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        _, task = await look_again(self._call, task)
        return task

    async def _begun(self, task: Task) -> tuple[Context | None, Task]:
        """The task once its turn has come, or once it was taken back."""
        context: Context | None = None
        while task.state == "TASK_STATE_SUBMITTED":
            await asyncio.sleep(LOOK_SECONDS)
            context, task = await look_again(self._call, task)
        return context, task

    async def _said(self, run: HostedRun, context: Context, task: Task) -> AsyncGenerator[Plain, None]:
        names: Plain = {"taskId": task.id, "contextId": task.session_id}
        said = Said(names, task)
        async with aclosing(run.stream(from_sequence=context.snapshot.sequence)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, StreamResync):
                    _, task = await read_task(self._call, task.id)
                    yield {"task": task.shown()}
                    said = Said(names, task)
                for update in said.feed(chunk):
                    yield {"artifactUpdate": update}


def _said_in(update: Plain) -> set[str]:
    """The artifact that an update adds something to, if it does."""
    artifact = update.get("artifactUpdate", {}).get("artifact")
    return set() if artifact is None or not artifact["parts"][0]["text"] else {artifact["artifactId"]}


class TaskSource:
    """The events of a task, each in the envelope of its request."""

    def __init__(self, follower: Follower, rpc_id: Any) -> None:
        self._follower = follower
        self._rpc_id = rpc_id

    async def frames(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._follower.events()) as events:
                async for event in events:
                    yield frame(to_json(answer(self._rpc_id, event)))
        except RPCError as problem:
            yield frame(to_json(failure(self._rpc_id, problem)))
        except HelixError as problem:
            yield self._broken(problem.code)

    def farewell(self) -> bytes:
        return self._broken("stream_lost")

    def _broken(self, code: str) -> bytes:
        return frame(to_json(failure(self._rpc_id, RPCError(INTERNAL_ERROR, sentence_for(code)))))
