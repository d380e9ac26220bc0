"""Call ids that are unique in the tree of a root session, because answers are routed by them."""

import re
from collections.abc import Sequence
from functools import cached_property

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message

MAX_LENGTH = 64
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


class CallIds:
    """Remembers the ids a session has used and renames what a provider repeats.

    At the root a provider's id is kept and a repeat becomes `<id>_<n>`. In a child every id carries the child's suffix,
    so that two children whose providers both say `call_0` do not collide. The messages are read when the first id is
    claimed: a turn without calls does not scan its history.
    """

    def __init__(self, messages: Sequence[Message] = (), *, suffix: str | None = None) -> None:
        self._suffix = f"_{suffix}" if suffix else ""
        self._messages = messages

    @cached_property
    def _used(self) -> set[ToolCallId]:
        replies = [message for message in self._messages if isinstance(message, AssistantMessage)]
        made = {call.id for reply in replies for call in reply.tool_calls}
        return made | {call.id for reply in replies for call in reply.provider_calls}

    def claim(self, provider_id: str) -> ToolCallId:
        """An unused id, as close to the provider's as possible."""
        plain = _FOREIGN.sub("_", provider_id) or "call"
        name = plain[: MAX_LENGTH - len(self._suffix)] + self._suffix
        number = 1
        while name in self._used:
            ending = f"_{number}{self._suffix}"
            name = plain[: MAX_LENGTH - len(ending)] + ending
            number += 1
        self._used.add(name)
        return name
