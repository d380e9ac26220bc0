"""Summaries of a conversation: hidden messages of the engine that stand for what was said before them."""

from collections.abc import Sequence
from typing import NamedTuple

from helix_agents.domain.messages import AssistantMessage, Message, UserMessage

SUMMARY = "summary"
"""What `metadata["helix"]` of such a message is; nobody else may send one."""


NOT_SUMMARISED = "not_summarised"
"""The key in a reply's metadata of about how many tokens its model was shown because no summary could be made."""


class Summarised(NamedTuple):
    """What a summary stands for: so many messages from the beginning on, of which so many were replies."""

    messages: int
    replies: int


def summary_message(text: str, summarised: Summarised) -> UserMessage:
    """A summary as it stands in a transcript. The transcript keeps what it stands for; a model is not shown that."""
    return UserMessage(content=text, hidden=True, metadata={"helix": SUMMARY, **summarised._asdict()})


def summarised_by(message: Message) -> Summarised | None:
    """What a message stands for; None if it is no summary."""
    if not isinstance(message, UserMessage) or message.metadata.get("helix") != SUMMARY:
        return None
    messages, replies = message.metadata.get("messages"), message.metadata.get("replies")
    if not isinstance(messages, int) or not isinstance(replies, int):
        return None
    return Summarised(messages, replies)


def not_summarised_at(message: Message) -> int | None:
    """About how many tokens a conversation had when a summary of it could not be made before this reply."""
    found = message.metadata.get(NOT_SUMMARISED) if isinstance(message, AssistantMessage) else None
    return found if isinstance(found, int) else None


def not_summarised(messages: Sequence[Message]) -> Sequence[Message]:
    """What the latest summary in a conversation does not stand for; all of it where there is none."""
    told = (summarised_by(each) for each in reversed(messages))
    latest = next((each for each in told if each is not None), None)
    return messages if latest is None else messages[latest.messages :]
