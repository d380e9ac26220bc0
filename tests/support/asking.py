"""Asking a model in a test."""

from typing import Any

from helix_agents.domain.messages import Message, UserMessage
from helix_agents.ports.llm import LLMAdapter, ModelRequest, ReplyDone


def question(*messages: Message, **fields: Any) -> ModelRequest:
    """A request with these messages, or with one that says hello."""
    given: dict[str, Any] = {
        "agent_type": "writer",
        "session_id": "s-1",
        "run_id": "r-1",
        "step": 1,
        "instructions": "Be brief.",
        "messages": list(messages) or [UserMessage(content="hello")],
    }
    given.update(fields)
    return ModelRequest(**given)


async def events_of(model: LLMAdapter, request: ModelRequest) -> list[Any]:
    return [event async for event in model.ask(request)]


async def answer_of(model: LLMAdapter, request: ModelRequest) -> ReplyDone:
    """The whole reply; it is always the last event, and the only one of its kind."""
    *before, last = await events_of(model, request)
    assert isinstance(last, ReplyDone)
    assert not any(isinstance(event, ReplyDone) for event in before)
    return last
