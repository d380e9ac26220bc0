"""Summaries of a conversation: hidden messages of the engine that stand for what was said before them."""

from typing import NamedTuple

from helix_agents.domain.messages import Message, UserMessage

SUMMARY = "summary"
"""What `metadata["helix"]` of such a message is; nobody else may send one."""


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
