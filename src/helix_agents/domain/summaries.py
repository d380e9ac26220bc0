"""Summaries of a conversation: hidden messages of the engine that replace what was said before them."""

from collections.abc import Sequence
from typing import NamedTuple

from helix_agents.domain.messages import AssistantMessage, Message, UserMessage

SUMMARY = "summary"
"""The value of `metadata["helix"]` in such a message; only the engine may send one."""


NOT_SUMMARISED = "not_summarised"
"""Metadata key of a reply: about how many tokens its model was shown because no summary could be made."""


class Summarised(NamedTuple):
    """What a summary replaces: this many messages from the beginning, of which this many were replies."""

    messages: int
    replies: int


def summary_message(text: str, summarised: Summarised) -> UserMessage:
    """A summary as a transcript message. The transcript records what it replaces; the model does not see that."""
    return UserMessage(content=text, hidden=True, metadata={"helix": SUMMARY, **summarised._asdict()})


def summarised_by(message: Message) -> Summarised | None:
    """What a message replaces; None if it is not a summary."""
    if not isinstance(message, UserMessage) or message.metadata.get("helix") != SUMMARY:
        return None
    messages, replies = message.metadata.get("messages"), message.metadata.get("replies")
    if not isinstance(messages, int) or not isinstance(replies, int):
        return None
    return Summarised(messages, replies)


def not_summarised_at(message: Message) -> int | None:
    """About how many tokens a conversation had when no summary of it could be made before this reply."""
    found = message.metadata.get(NOT_SUMMARISED) if isinstance(message, AssistantMessage) else None
    return found if isinstance(found, int) else None


def not_summarised(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages that the latest summary in a conversation does not replace; all of them if there is none."""
    told = (summarised_by(each) for each in reversed(messages))
    latest = next((each for each in told if each is not None), None)
    return messages if latest is None else messages[latest.messages :]
