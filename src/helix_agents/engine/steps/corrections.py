"""How often the model was sent back to correct itself in this turn, per tool, and whether a tool has answered."""

from collections.abc import Sequence

from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.recollections import RECOLLECTION
from helix_agents.domain.skills import SKILLS
from helix_agents.domain.summaries import SUMMARY
from helix_agents.domain.transcript import hands_over

INVALID_ARGUMENTS = "invalid_arguments"
UNKNOWN_TOOL = "unknown_tool"
RETRY_REQUESTED = "retry_requested"
CORRECTABLE = frozenset((INVALID_ARGUMENTS, UNKNOWN_TOOL, RETRY_REQUESTED))

OUTPUT_REMINDER = "output_reminder"
"""Marks the hidden message that asks a model to hand in its output."""

COMPANION_NOTICE = "companion_notice"
"""Marks the hidden message that tells a model what became of a companion."""

LATE_ANSWER = "late_answer"
"""Marks the hidden message that tells a model of an answer that came too late."""

NEWS = "news"
"""Marks the hidden message in which a capability tells a model something before a step."""

WAKEUP = "wakeup"
"""Marks the hidden message in which a capability tells an idle session something, which begins a turn."""

CONTINUE = "continue"
"""Marks the hidden message that asks a model to continue after a stop."""

_BEGIN_NO_TURN = frozenset((OUTPUT_REMINDER, COMPANION_NOTICE, LATE_ANSWER, NEWS, SUMMARY, SKILLS, RECOLLECTION))


class Corrections:
    """Counts since the turn's own message, or since another agent took over, read from the transcript so that a crash
    forgets nothing.

    The transcript grows with every commit; its new messages are counted on demand.
    """

    def __init__(self, transcript: Sequence[Message]) -> None:
        self._transcript = transcript
        self._by_tool: dict[str, int] = {}
        self._reminders = 0
        self._answered = False
        self._begun_at = len(transcript)
        self._counted: int | None = None

    @property
    def reminders(self) -> int:
        """How often the model was reminded to hand in its output."""
        self._count()
        return self._reminders

    @property
    def answered(self) -> bool:
        """Whether a call has got an answer that does not send the model back."""
        self._count()
        return self._answered

    def of(self, tool_name: str) -> int:
        """How often the model was sent back with this tool."""
        self._count()
        return self._by_tool.get(tool_name, 0)

    def _count(self) -> None:
        if self._counted is None:
            self._counted = _turn_start(self._transcript, self._begun_at)
        for message in self._transcript[self._counted :]:
            if hands_over(message):
                self._begin()
            elif isinstance(message, ToolMessage):
                if message.code in CORRECTABLE:
                    self._by_tool[message.tool_name] = self._by_tool.get(message.tool_name, 0) + 1
                else:
                    self._answered = True
            elif _is_reminder(message):
                self._reminders += 1
            elif begins_turn(message):
                # This message waited behind open calls, and is the turn's own message from here on.
                self._begin()
        self._counted = len(self._transcript)

    def _begin(self) -> None:
        self._by_tool.clear()
        self._reminders = 0
        self._answered = False


def _turn_start(transcript: Sequence[Message], end: int) -> int:
    """The index after the turn's own message, which is the last message before `end` that starts a turn."""
    for place in range(end, 0, -1):
        if begins_turn(transcript[place - 1]):
            return place
    return 0


def begins_turn(message: Message) -> bool:
    """Whether a turn starts with this message; hidden notices in between start none."""
    return isinstance(message, UserMessage) and message.metadata.get("helix") not in _BEGIN_NO_TURN


def replies_that_count(messages: Sequence[Message]) -> list[AssistantMessage]:
    """The replies among these messages, without those in whose place another one was asked for."""
    return [
        message
        for place, message in enumerate(messages, start=1)
        if isinstance(message, AssistantMessage) and not any(map(_is_reminder, messages[place : place + 1]))
    ]


def _is_reminder(message: Message) -> bool:
    return isinstance(message, UserMessage) and message.metadata.get("helix") == OUTPUT_REMINDER
