"""The skills a run has settled on: a hidden message of the engine, which the model reads in its instructions."""

from helix_agents.domain.messages import Message, UserMessage

SKILLS = "skills"
"""What `metadata["helix"]` of such a message is; nobody else may send one."""


def skills_message(fragment: str) -> UserMessage:
    """What the instructions say of skills from here on, as it stands in a transcript. No model is shown it there."""
    return UserMessage(content=fragment, hidden=True, metadata={"helix": SKILLS})


def skills_told_by(message: Message) -> str | None:
    """What a message says of skills; None if that is not what it is for."""
    if type(message) is UserMessage and message.hidden and message.metadata.get("helix") == SKILLS:
        return message.content if isinstance(message.content, str) else None
    return None
