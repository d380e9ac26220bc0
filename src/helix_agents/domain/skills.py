"""The skills a run has settled on: a hidden message of the engine, which the model reads in its instructions."""

from helix_agents.domain.messages import Message, UserMessage

SKILLS = "skills"
"""The value of `metadata["helix"]` in such a message; only the engine may send one."""


def skills_message(fragment: str) -> UserMessage:
    """What the instructions say about skills from here on, as a transcript message. The model does not see it there."""
    return UserMessage(content=fragment, hidden=True, metadata={"helix": SKILLS})


def skills_told_by(message: Message) -> str | None:
    """What a message says about skills; None if it is not such a message."""
    if type(message) is UserMessage and message.hidden and message.metadata.get("helix") == SKILLS:
        return message.content if isinstance(message.content, str) else None
    return None
