"""How often the model was sent back to correct itself in this turn, per tool."""

from collections.abc import Sequence

from helix_agents.domain.ids import ToolCallId
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
        for message in reversed(transcript):
            if isinstance(message, ToolMessage):
                self.note(message)
            elif isinstance(message, UserMessage):
                if message.metadata.get("helix") != OUTPUT_REMINDER:
                    break
                self.reminders += 1

    def note(self, result: ToolMessage) -> None:
        """Count a result, if it sent the model back."""
        if result.code in CORRECTABLE:
            self._by_tool[result.tool_name] = self._by_tool.get(result.tool_name, 0) + 1

    def of(self, tool_name: str) -> int:
        """How often the model was sent back with this tool."""
        return self._by_tool.get(tool_name, 0)


def call_index(calls: Sequence[ToolCallId]) -> dict[ToolCallId, int]:
    """Each call's place in the model's order."""
    return {call_id: index for index, call_id in enumerate(calls)}
