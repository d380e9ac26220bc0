"""How often the model was sent back to correct itself in this turn, per tool."""

from collections.abc import Iterable, Sequence

from helix_agents.domain.messages import Message, ToolMessage, UserMessage

INVALID_ARGUMENTS = "invalid_arguments"
UNKNOWN_TOOL = "unknown_tool"
RETRY_REQUESTED = "retry_requested"
CORRECTABLE = frozenset((INVALID_ARGUMENTS, UNKNOWN_TOOL, RETRY_REQUESTED))

OUTPUT_REMINDER = "output_reminder"
"""Marks the hidden message that asks a model to hand in its output."""


class Corrections:
    """Counts since the turn's own message; rebuilt from the transcript, so that a crash forgets nothing."""

    def __init__(self, transcript: Sequence[Message]) -> None:
        self._by_tool: dict[str, int] = {}
        self.reminders = 0
        turn: list[Message] = []
        for message in reversed(transcript):
            if isinstance(message, UserMessage) and not _is_reminder(message):
                break
            turn.append(message)
        self.note_all(turn)

    def note_all(self, messages: Iterable[Message]) -> None:
        """Count what sent the model back."""
        for message in messages:
            if isinstance(message, ToolMessage) and message.code in CORRECTABLE:
                self._by_tool[message.tool_name] = self._by_tool.get(message.tool_name, 0) + 1
            elif isinstance(message, UserMessage) and _is_reminder(message):
                self.reminders += 1

    def of(self, tool_name: str) -> int:
        """How often the model was sent back with this tool."""
        return self._by_tool.get(tool_name, 0)


def _is_reminder(message: UserMessage) -> bool:
    return message.metadata.get("helix") == OUTPUT_REMINDER
