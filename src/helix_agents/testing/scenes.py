"""Short ways to bring a store into a situation, so that a test shows only what it is about."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed, RunStartCommitted, StartRun, StepCommit
from helix_agents.domain.effects import BeginEffect
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, UserMessage
from helix_agents.domain.pending import PendingCall, SubmitAnswer, ToolAnswer
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.runs import Fence, RunUpdate
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.writes import NO_WRITES, Append, Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore

SESSION = "s-1"
RUN = "r-1"
FENCE = Fence(run_id=RUN)

IMPOSSIBLE_IDS = ("", "x" * 257, "a\x00b", "line\nbreak", " padded", "padded ")
"""Texts that can never be an id of anything."""


def fence_of(run_id: str, attempt: int = 1) -> Fence:
    """The fence of a run at an attempt."""
    return Fence(run_id=run_id, attempt=attempt)


def said(text: str) -> UserMessage:
    """A user's message."""
    return UserMessage(content=text)


def asked(*call_ids: str, text: str = "") -> AssistantMessage:
    """A reply that asks for these tool calls."""
    return AssistantMessage(text=text, tool_calls=tuple(ToolCall(id=call, name="tool") for call in call_ids))


def set_key(key: str, value: Any, call: str | None = None) -> StepWrites:
    """One replacement."""
    return StepWrites(ops=(Replace(key=key, value=value, tool_call_id=call),))


def append_to(key: str, *items: Any, call: str | None = None) -> StepWrites:
    """One append."""
    return StepWrites(ops=(Append(key=key, items=list(items), tool_call_id=call),))


def step_meta(step: int = 1, run_id: str = RUN) -> CheckpointMeta:
    """The position of the given step of a run."""
    return CheckpointMeta(step_id=f"{run_id}-step-{step}", step_count=step, stream_sequence=step * 10)


def staged(call: str, writes: StepWrites = NO_WRITES, *, step: int = 1, index: int = 0, **fields: Any) -> StagedChange:
    """A row staged by one call of a step of the usual run."""
    return StagedChange(step_id=step_meta(step).step_id, tool_call_id=call, index=index, writes=writes, **fields)


def waiting(store: SessionStateStore, call: str, session_id: SessionId = SESSION, **fields: Any) -> PendingCall:
    """A waiting call of a client tool, as a step would announce it."""
    settings: dict[str, Any] = {
        "kind": "client_tool",
        "root_session_id": session_id,
        "run_id": RUN,
        "step_id": step_meta().step_id,
        "tool_name": "ask",
        "created_at": store.now_ms(),
        **fields,
    }
    return PendingCall(tool_call_id=call, session_id=session_id, **settings)


def answer(call: str, session_id: SessionId = SESSION, result: Any = "yes", **fields: Any) -> SubmitAnswer:
    """A client tool's result on its way in."""
    return SubmitAnswer(session_id=session_id, tool_call_id=call, answer=ToolAnswer(result=result), **fields)


def child_ref(child: SessionId, call: str = "delegate-1", **fields: Any) -> SubSessionRef:
    """A reference to a child session."""
    return SubSessionRef(sub_session_id=child, agent_type="helper", tool_call_id=call, delegation="help", **fields)


def effect(call: str, owner: str = "worker-1", **fields: Any) -> BeginEffect:
    """The announcement of a tool that must not run twice, by the usual run."""
    settings: dict[str, Any] = {"session_id": SESSION, "fence": FENCE, "lease_ms": 1_000, **fields}
    return BeginEffect(tool_call_id=call, tool_name="pay", idempotency_key=f"key-{call}", owner=owner, **settings)


def queued(run_id: str, text: str = "And then?", session_id: SessionId = SESSION, **fields: Any) -> QueuedTurn:
    """A turn for the queue."""
    return QueuedTurn(session_id=session_id, run_id=run_id, messages=(said(text),), **fields)


async def start(
    store: SessionStateStore, session_id: SessionId = SESSION, run_id: str = RUN, **fields: Any
) -> RunStartCommitted:
    """Start a run; the session is created if it does not exist."""
    if "create" not in fields and not await store.session_exists(session_id):
        fields["create"] = CreateSession(agent_type="writer")
    return await store.start_run(StartRun(session_id=session_id, run_id=run_id, **fields))


async def commit(
    store: SessionStateStore,
    step: int = 1,
    *,
    session_id: SessionId = SESSION,
    fence: Fence = FENCE,
    messages: Sequence[Message] = (),
    state: dict[str, Any] | None = None,
    expected_version: int | None = None,
    **fields: Any,
) -> Committed:
    """Commit one step; `state` replaces fields of the loaded record, the rest goes into the commit."""
    record = await store.load_state(session_id)
    if state:
        record = replace(record, **state)
    return await store.save_state_and_promote_staging(
        session_id,
        record,
        messages,
        step_meta(step, fence.run_id),
        expected_version=expected_version,
        commit=StepCommit(fence=fence, step=step, **fields),
    )


async def suspend(store: SessionStateStore, step: int, *calls: PendingCall, **fields: Any) -> Committed:
    """Commit a step that ends its run to wait for the given calls."""
    run = RunUpdate(status="suspended_client_tool", completion_reason="suspended_client_tool")
    return await commit(store, step, pending=calls, run=run, suspend=True, **fields)


async def start_child(store: SessionStateStore, child: str = "child", parent: str = SESSION) -> str:
    """A running child session; returns its run id."""
    create = CreateSession(agent_type="helper", parent_session_id=parent, root_session_id=SESSION)
    return (await start(store, child, f"r-{child}", create=create)).run.run_id


async def announce_in_child(store: SessionStateStore, *calls: PendingCall, child: str = "child") -> None:
    """A child's step announces calls; the child continues running."""
    await commit(store, session_id=child, fence=fence_of(f"r-{child}"), pending=calls)


def of_child(store: SessionStateStore, call: str, child: str = "child", **fields: Any) -> PendingCall:
    """A call that waits in a child of the usual session."""
    return waiting(store, call, child, root_session_id=SESSION, run_id=f"r-{child}", **fields)
