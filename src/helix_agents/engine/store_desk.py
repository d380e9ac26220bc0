"""A desk in the store: what one effect leaves there, the process that runs the next effect finds."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from helix_agents.domain.errors import StateSizeExceededError
from helix_agents.domain.ids import SessionId, StepId, ToolCallId
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.records import Record, decode, decode_json, encode
from helix_agents.domain.runs import Fence
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.writes import NO_WRITES
from helix_agents.engine.desk import Desk, Note, RestingReply, RestingResult
from helix_agents.ports.state_store import SessionStateStore

REPLY = "__reply__"
"""Name prefix of rows that hold a reply whose step is not committed yet."""

RESULT = "result:"
"""Name prefix of rows that hold results of calls. A result that a commit holds back is stored under the call's own id,
so a late try cannot overwrite it."""

NOTE = "note:"
"""Name prefix of rows that hold notes."""

R = TypeVar("R", bound=Record)


@dataclass
class _Held:
    reply: RestingReply | None = None
    results: dict[ToolCallId, RestingResult] = field(default_factory=dict[ToolCallId, RestingResult])
    notes: dict[str, Note] = field(default_factory=dict[str, Note])


class StoreDesk:
    """The desk of one attempt of a run, as staged rows under its fence; the step's commit removes them.

    A driver that is `alone` with the attempt reads the rows once and tracks its own additions. Others read the store
    every time, because effects of the same step run in other processes. An effect may even run twice at the same time:
    each try then leaves its own reply, the one of the latest try counts, and whatever a commit took stays as it is.

    Replies and results need not be synced to disk before the commit that takes them: if one is missing after a power
    cut, the run goes back to its last commit.
    """

    is_durable = True

    def __init__(self, store: SessionStateStore, session_id: SessionId, fence: Fence, *, alone: bool) -> None:
        self._store = store
        self._session_id = session_id
        self._fence = fence
        self._alone = alone
        self._held: dict[StepId, _Held] = {}
        self._has_committed = False

    async def put_reply(self, step_id: StepId, reply: RestingReply) -> None:
        await self._stage(step_id, f"{REPLY}{reply.writer}.{reply.begun_at}", reply, synced=False)
        if self._alone:
            (await self._find(step_id)).reply = reply

    async def find_reply(self, step_id: StepId) -> RestingReply | None:
        return (await self._find(step_id)).reply

    async def put_result(self, step_id: StepId, result: RestingResult) -> None:
        call_id = result.message.tool_call_id
        try:
            await self._stage(step_id, RESULT + call_id, result, synced=False)
        except StateSizeExceededError as refused:
            # The call's state writes or input are too large to store: only this call fails.
            result = _refused(result, refused)
            await self._stage(step_id, RESULT + call_id, result, synced=False)
        if self._alone:
            (await self._find(step_id)).results[call_id] = result

    async def results(self, step_id: StepId) -> dict[ToolCallId, RestingResult]:
        return (await self._find(step_id)).results

    async def put_note(self, step_id: StepId, name: str, note: Note) -> None:
        await self._stage(step_id, NOTE + name, note, synced=True)
        if self._alone:
            (await self._find(step_id)).notes[name] = note

    async def notes(self, step_id: StepId) -> dict[str, Note]:
        return (await self._find(step_id)).notes

    def clear(self) -> None:
        self._held.clear()
        self._has_committed = True

    async def _find(self, step_id: StepId) -> _Held:
        held = self._held.get(step_id) if self._alone else None
        if held is None:
            # Whatever rested before this attempt's first commit went into that commit.
            is_empty = self._alone and self._has_committed
            staged = () if is_empty else await self._store.get_staged_changes(self._session_id, step_id)
            held = self._held[step_id] = _read(staged)
        return held

    async def _stage(self, step_id: StepId, name: str, record: Record, *, synced: bool) -> None:
        change = StagedChange(step_id=step_id, tool_call_id=name, data=decode_json(encode(record)))
        await self._store.stage_changes(self._session_id, change, fence=self._fence, synced=synced)


def recorded_reply(changes: tuple[StagedChange, ...]) -> RestingReply | None:
    """The reply among staged rows, if there is one."""
    return _read(changes).reply


def recorded_results(changes: tuple[StagedChange, ...]) -> dict[ToolCallId, RestingResult]:
    """The results among staged rows."""
    return _read(changes).results


def reply_row(step_id: StepId, reply: RestingReply) -> StagedChange:
    """A reply as a row, to be stored together with the first lasting trace that one of its calls leaves."""
    return StagedChange(step_id=step_id, tool_call_id=REPLY, data=decode_json(encode(reply)))


def _read(changes: tuple[StagedChange, ...]) -> _Held:
    """Decode staged rows.

    A row that holds a message is a result that an earlier commit of a suspended step kept. A resting result of the same
    call is then ignored: it was committed too, or comes from a try that no longer counts.
    """
    held = _Held()
    committed = {change.tool_call_id for change in changes if change.data is None}
    for change in changes:
        name = change.tool_call_id
        if change.data is None:
            continue
        if name.startswith(REPLY):
            reply = _as(change, RestingReply)
            if held.reply is None or reply.rank >= held.reply.rank:
                held.reply = reply
        elif name.startswith(NOTE):
            held.notes[name.removeprefix(NOTE)] = _as(change, Note)
        elif name.removeprefix(RESULT) not in committed:
            held.results[name.removeprefix(RESULT)] = _as(change, RestingResult)
    return held


def _as(change: StagedChange, kind: type[R]) -> R:
    return decode(encode(change.data), kind)


def _refused(result: RestingResult, refused: StateSizeExceededError) -> RestingResult:
    message = result.message
    told = ToolMessage(
        tool_call_id=message.tool_call_id,
        tool_name=message.tool_name,
        content=str(refused),
        error=True,
        code=refused.code,
    )
    return msgspec.structs.replace(
        result, message=told, writes=NO_WRITES, entries=(), input={}, finishes=False, output=None
    )


_: type[Desk] = StoreDesk
