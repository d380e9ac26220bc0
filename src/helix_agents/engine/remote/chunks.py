"""A remote child's chunks on their way into the parent's stream: they speak for that child and nobody else."""

import re
from hashlib import sha256
from typing import Any

import msgspec

from helix_agents.domain.chunks import Custom, StreamChunk, StreamResync, Truncated
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.ids import SessionId, ToolCallId, check_id
from helix_agents.engine.steps.call_ids import MAX_LENGTH

_TAIL = 12
_MARK = 16
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
# Events under these names mean something to pages; only our own agents may say so.
_OURS = frozenset(("output", "error", "state-patch", "subagent"))
_FOREIGN_FIELDS = (
    "child_session_id",
    "previous_run_id",
    "by_run_id",
    "checkpoint_id",
    "step_id",
)
_HIGHEST_STEP = 1_000_000


class Names:
    """Names of another service as they are known here: each with the end of the child's own, unguessable id.

    So no name that comes from there can be one that is in use here, and two remote children never meet.
    """

    def __init__(self, child: SessionId) -> None:
        self._tail = child[-_TAIL:]
        self._ending = f".{self._tail}"

    def here(self, name: str) -> str:
        """The name as it is known here.

        Raises:
            InvalidIdError: it cannot be a name.
        """
        return check_id(f"{check_id(name, 'remote id')}{self._ending}", "remote id")

    def call_here(self, call_id: ToolCallId) -> ToolCallId:
        """The call's id as it is known here: of letters, digits, `_` and `-`, and at most 64 of them, as providers ask.

        One that does not fit is cut and told apart by a digest, after a sign that no id which fits has there. The id
        there is not in it: whoever needs it looks through the calls that wait there.

        Raises:
            InvalidIdError: it cannot be an id.
        """
        tail = _FOREIGN.sub("_", self._tail)
        plain = f"{check_id(call_id, 'remote call id')}_{tail}"
        if len(plain) <= MAX_LENGTH and not _FOREIGN.search(plain):
            return plain
        ending = f"_{sha256(call_id.encode()).hexdigest()[:_MARK]}-{tail}"
        return _FOREIGN.sub("_", call_id)[: MAX_LENGTH - len(ending)] + ending

    def is_foreign(self, name: str) -> bool:
        """Whether this is a name of that service."""
        return name.endswith(self._ending)


def attributed(
    chunk: StreamChunk,
    names: Names,
    *,
    there: SessionId,
    here: SessionId,
    agent_type: str,
    delegated_by: ToolCallId,
) -> StreamChunk | None:
    """The chunk as it stands in the parent's stream; None when it has no place there.

    `there` and `here` are the child's session ids. What the child says of itself is told as the child's; what it says
    of sessions below it as theirs, under names that are nobody's here. All of it hangs below the call that delegated.
    """
    if isinstance(chunk, Truncated | StreamResync) or (isinstance(chunk, Custom) and chunk.name in _OURS):
        return None
    own = chunk.session_id == there
    above = chunk.parent_tool_call_id
    try:
        changes: dict[str, Any] = {
            "session_id": here if own else names.here(chunk.session_id),
            "run_id": names.here(chunk.run_id),
            "agent_type": agent_type if own else check_id(chunk.agent_type, "agent type"),
            "parent_tool_call_id": delegated_by if own or above is None else names.call_here(above),
            "step": min(max(chunk.step, 0), _HIGHEST_STEP),
            "sequence": 0,
            "timestamp": 0,
            "remote_sequence": chunk.sequence,
        }
        for name in _FOREIGN_FIELDS:
            value = getattr(chunk, name, None)
            if value is not None:
                changes[name] = names.here(value)
        changes |= _calls_of(chunk, names)
    except InvalidIdError:
        return None
    return msgspec.structs.replace(chunk, **changes)


def _calls_of(chunk: StreamChunk, names: Names) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if (call_id := getattr(chunk, "tool_call_id", None)) is not None:
        changes["tool_call_id"] = names.call_here(call_id)
    if waiting := getattr(chunk, "tool_call_ids", ()):
        changes["tool_call_ids"] = tuple(map(names.call_here, waiting))
    return changes
