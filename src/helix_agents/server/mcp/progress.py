"""What a client is told while an agent works, in messages that a person can read."""

from helix_agents.domain.chunks import (
    ProviderToolEnd,
    ProviderToolStart,
    StepCommitted,
    StepDiscarded,
    StreamChunk,
    SubagentStart,
    TextDelta,
    ToolApprovalRequest,
    ToolEnd,
    ToolError,
    ToolStart,
)

ENOUGH = 80
"""How many characters make a message, if no line ends before that."""


class Progress:
    """Turns chunks into messages, at most one for each. Texts come in pieces that are long enough to be read."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, chunk: StreamChunk) -> str | None:
        """The message for one more chunk, if there is one. What sub-agents do is left out."""
        if chunk.parent_tool_call_id is not None:
            return None
        match chunk:
            case TextDelta(delta=delta):
                self._text += delta
                is_enough = len(self._text) >= ENOUGH or "\n" in delta
                return self._taken() if is_enough else None
            case StepDiscarded():
                self._text = ""
                return "Starting the last step over."
            case ToolStart(tool_name=name) | ProviderToolStart(tool_name=name):
                return self._taken(f"Running {name}.")
            case SubagentStart(child_agent_type=name):
                return self._taken(f"Asking {name}.")
            case ToolApprovalRequest(tool_name=name):
                return self._taken(f"{name} needs an approval.")
            case ToolEnd(tool_name=name) | ProviderToolEnd(tool_name=name, error=False):
                return self._taken(f"{name} has ended.")
            case ToolError(tool_name=name) | ProviderToolEnd(tool_name=name):
                return self._taken(f"{name} has failed.")
            case StepCommitted():
                return self._taken()
            case _:
                return None

    def _taken(self, more: str | None = None) -> str | None:
        said, self._text = self._text.strip(), ""
        return "\n".join(text for text in (said, more) if text) or None
