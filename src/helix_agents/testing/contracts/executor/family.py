"""A small family of agents for delegation scenarios, and plain words for the outcome of a tree of sessions."""

import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StreamChunk, SubagentEnd, SubagentStart
from helix_agents.domain.messages import HELD_SINCE, Message, ToolMessage
from helix_agents.domain.pending import Answer, ApprovalAnswer, PendingCall, ToolAnswer
from helix_agents.domain.records import encode
from helix_agents.domain.rendering import surviving
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.backend import Backend
from helix_agents.testing.contracts.executor.stage import SESSION, assert_legal, scripted

_MINTED = re.compile(r"\b(run|child|approval|delegation)_[a-z0-9]{20,}")


class Diary(BaseModel):
    """What an agent did itself."""

    done: list[str] = []


@tool
async def deploy(ctx: ToolContext[Diary], target: str) -> str:
    """Deploy something."""
    ctx.state.done.append(target)
    return f"deployed {target}"


@tool(require_approval=True, name="deploy")
async def deploy_if_allowed(ctx: ToolContext[Diary], target: str) -> str:
    """Deploy something, if somebody agrees."""
    ctx.state.done.append(target)
    return f"deployed {target}"


@tool
async def locate(city: str) -> str:
    """Where the client is."""
    return "here"


@client_tool(name="locate")
def locate_at_client(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def agent(name: str, *script: Any, **fields: Any) -> AnyAgent:
    """An agent that follows a script and keeps a diary."""
    return scripted(script, fields, name=name, description=f"The {name}.", state=Diary)


def delegate(name: str, message: str = "go", *, id: str | None = None) -> Any:
    """A call that hands work to a sub-agent."""
    return call(f"subagent__{name}", {"message": message}, id=id)


def worker(*, pauses: bool = True, **fields: Any) -> AnyAgent:
    """At the bottom: deploys what it is told, after a person agreed if it pauses."""
    script = (reply("I deploy. ", calls=[call("deploy", {"target": "prod"}, id="call_0")]), "Deployed.")
    return agent("worker", *script, **{"tools": [deploy_if_allowed if pauses else deploy], **fields})


def planner(*, pauses: bool = True) -> AnyAgent:
    """In the middle: asks the client something and hands the rest to a worker."""
    calls = [delegate("worker", id="call_0"), call("locate", {"city": "Rome"}, id="call_1")]
    where = locate_at_client if pauses else locate
    return agent("planner", reply("I plan. ", calls=calls), "Planned.", tools=[worker(pauses=pauses).as_tool(), where])


def lead(*, pauses: bool = True) -> AnyAgent:
    """At the root: a planner and a worker in parallel, whose models name their calls alike."""
    calls = [delegate("planner", "plan", id="call_0"), delegate("worker", "work", id="call_1")]
    tools = [planner(pauses=pauses).as_tool(), worker(pauses=pauses).as_tool()]
    return agent("lead", reply("I delegate. ", calls=calls), "All done.", tools=tools)


def answer_to(waiting: PendingCall) -> Answer:
    """What people say in these scenarios."""
    return ApprovalAnswer(approved=True) if waiting.kind == "approval" else ToolAnswer(result="here")


async def children(parts: Backend, session_id: str = SESSION) -> tuple[SubSessionRef, ...]:
    """The delegations of a session, oldest first."""
    return await parts.state.get_sub_session_refs(session_id)


async def only_child(parts: Backend, session_id: str = SESSION) -> str:
    """The id of a session's only child."""
    (ref,) = await children(parts, session_id)
    return ref.sub_session_id


async def statuses(parts: Backend, session_id: str = SESSION) -> dict[str, str]:
    """The state of every session of a tree, and its current run, by agent."""
    session = await parts.state.load_state(session_id)
    run = await parts.state.get_current_run(session_id)
    found = {session.agent_type: f"{session.status} {run.status if run else None}"}
    for ref in await children(parts, session_id):
        found |= await statuses(parts, ref.sub_session_id)
    return found


async def told(parts: Backend, session_id: str) -> list[Message]:
    """The conversation of a session, which a provider must accept."""
    messages = [stored.message for stored in await parts.state.load_transcript(session_id)]
    assert_legal(messages)
    return messages


async def story(parts: Backend, session_id: str = SESSION) -> Any:
    """The outcome of a tree, without ids and times: two runs of the same story are equal."""
    session = await parts.state.load_state(session_id)
    messages = [_timeless(message) for message in await told(parts, session_id)]
    plain = encode(messages).decode().replace(f"_{session_id[-6:]}", "")
    refs = sorted(await children(parts, session_id), key=lambda ref: ref.tool_call_id)
    return {
        "agent": session.agent_type,
        "status": session.status,
        "output": session.output,
        "state": session.custom_state,
        "messages": _MINTED.sub(r"\1", plain),
        "children": [
            (ref.tool_call_id.split("_")[1], ref.status, ref.result, await story(parts, ref.sub_session_id))
            for ref in refs
        ],
    }


def _timeless(message: Message) -> Message:
    """The message, whether it waited for others or not."""
    if not isinstance(message, ToolMessage):
        return message
    return replace(message, metadata={key: value for key, value in message.metadata.items() if key != HELD_SINCE})


def assert_well_told(chunks: Iterable[StreamChunk], root: str = SESSION) -> None:
    """Each child speaks between its single start and its single end, and says in whose name."""
    open_calls: dict[str, str] = {}
    over: set[str] = set()
    for chunk in surviving(chunks):
        if isinstance(chunk, SubagentStart):
            assert chunk.tool_call_id not in open_calls.keys() | over, f"{chunk.tool_call_id} started twice"
            open_calls[chunk.tool_call_id] = chunk.child_session_id
        elif isinstance(chunk, SubagentEnd):
            assert open_calls.pop(chunk.tool_call_id, None) == chunk.child_session_id, "an end without a start"
            over.add(chunk.tool_call_id)
        if chunk.session_id == root:
            assert chunk.parent_tool_call_id is None
        else:
            assert chunk.parent_tool_call_id is not None
            assert open_calls.get(chunk.parent_tool_call_id) == chunk.session_id, f"{chunk} is out of place"
    assert not open_calls, f"{open_calls} never ended"
