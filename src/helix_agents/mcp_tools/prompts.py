"""Prompts of a server, as messages for an agent."""

import mcp_types as types

from helix_agents.domain.messages import Text, UserMessage
from helix_agents.mcp_tools.results import part_of
from helix_agents.mcp_tools.troubles import TroubleMet


def messages_of(name: str, prompt: types.GetPromptResult) -> tuple[UserMessage, ...]:
    """What a prompt has somebody say to a model.

    Raises:
        TroubleMet: it also has words of the model, which nobody else can say.
    """
    if any(each.role != "user" for each in prompt.messages):
        raise TroubleMet("refused", f"its prompt {name!r} has words of the model in it, which cannot be said for it")
    return tuple(_message(each.content) for each in prompt.messages)


def _message(block: types.ContentBlock) -> UserMessage:
    part = part_of(block)
    return UserMessage(content=part.text if isinstance(part, Text) else (part,))
