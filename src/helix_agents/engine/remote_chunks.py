"""A remote child's chunks on their way into the parent's stream: they speak for that child and nobody else."""

from typing import Any

import msgspec

from helix_agents.domain.chunks import Custom, StreamChunk, StreamResync, Truncated
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.ids import SessionId, ToolCallId, check_id

_TAIL = 12
# Events under these names mean something to pages; only our own agents may say so.
_OURS = frozenset(("output", "error", "state-patch", "subagent"))
_FOREIGN_FIELDS = (
    "tool_call_id",
    "child_session_id",
    "previous_run_id",
    "by_run_id",
    "checkpoint_id",
    "step_id",
)
_HIGHEST_STEP = 1_000_000


class Names:
    """Names of another service as they are known here: each with the end of the child's own, unguessable id.

    So no name that comes from there can be one that is in use here, and two remote children never meet. Taking the
    ending off again gives the name back, at every level of a chain of services.
    """

    def __init__(self, child: SessionId) -> None:
        self._ending = f".{child[-_TAIL:]}"

    def here(self, name: str) -> str:
        """The name as it is known here.

        Raises:
            InvalidIdError: it cannot be a name.
        """
        return check_id(f"{check_id(name, 'remote id')}{self._ending}", "remote id")

    def is_foreign(self, name: str) -> bool:
        """Whether this is a name of that service."""
        return name.endswith(self._ending)

    def there(self, name: str) -> str:
        """The name as the other service knows it."""
        return name.removesuffix(self._ending)


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
            "parent_tool_call_id": delegated_by if own or above is None else names.here(above),
            "step": min(max(chunk.step, 0), _HIGHEST_STEP),
            "sequence": 0,
            "timestamp": 0,
            "remote_sequence": chunk.sequence,
        }
        for name in _FOREIGN_FIELDS:
            value = getattr(chunk, name, None)
            if value is not None:
                changes[name] = names.here(value)
        waiting = getattr(chunk, "tool_call_ids", ())
        if waiting:
            changes["tool_call_ids"] = tuple(map(names.here, waiting))
    except InvalidIdError:
        return None
    return msgspec.structs.replace(chunk, **changes)
