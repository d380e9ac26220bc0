"""A remote child's chunks on their way into the parent's stream: they can speak only for that child."""

import re
from hashlib import sha256
from typing import Any

import msgspec

from helix_agents.domain.chunks import Custom, StreamChunk, StreamResync, ToolEnd, Truncated
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.ids import SessionId, ToolCallId, check_id
from helix_agents.domain.parts import looks_like_parts
from helix_agents.engine.steps.call_ids import MAX_LENGTH

_TAIL = 12
_MARK = 16
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
# Events under these names have a meaning for pages, so only our own agents may send them.
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
    """Names from another service as they are known here: each gets the end of the child's own, unguessable id.

    So no name from there can collide with one in use here, and two remote children never share a name.
    """

    def __init__(self, child: SessionId) -> None:
        self._tail = child[-_TAIL:]
        self._ending = f".{self._tail}"

    def here(self, name: str) -> str:
        """The name as it is known here.

        Raises:
            InvalidIdError: it is not a valid name.
        """
        return check_id(f"{check_id(name, 'remote id')}{self._ending}", "remote id")

    def call_here(self, call_id: ToolCallId) -> ToolCallId:
        """The call's id as it is known here: at most 64 letters, digits, `_` and `-`, as providers require.

        An id that does not fit is cut and made unique by a digest, behind a sign that no fitting id has in that place.
        The original id cannot be recovered from it; it is found by going through the calls that wait there.

        Raises:
            InvalidIdError: it is not a valid id.
        """
        tail = _FOREIGN.sub("_", self._tail)
        plain = f"{check_id(call_id, 'remote call id')}_{tail}"
        if len(plain) <= MAX_LENGTH and not _FOREIGN.search(plain):
            return plain
        ending = f"_{sha256(call_id.encode()).hexdigest()[:_MARK]}-{tail}"
        return _FOREIGN.sub("_", call_id)[: MAX_LENGTH - len(ending)] + ending

    def is_foreign(self, name: str) -> bool:
        """Whether this name comes from that service."""
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
    """The chunk as it appears in the parent's stream; None if it has no place there.

    `there` and `here` are the child's session ids. What the child says about itself is attributed to the child. What it
    says about sessions below it is attributed to those, under names that are not in use here. All of it appears below
    the call that delegated.
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
        if isinstance(chunk, ToolEnd) and chunk.in_parts:
            changes["in_parts"] = looks_like_parts(chunk.result)
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
