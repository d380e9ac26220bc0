"""What an agent's capabilities say before its next step, told once, and what they keep when a run comes to rest."""

from typing import Any

from helix_agents.agent.context import RunContext
from helix_agents.domain.entries import Change
from helix_agents.domain.messages import UserMessage
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.corrections import NEWS
from helix_agents.engine.user_code import Notes, run_context


def news_message(text: str, marked: str = NEWS) -> UserMessage:
    """Something a capability says, as the model sees it."""
    return UserMessage(content=text, hidden=True, metadata={"helix": marked})


async def tell_news(scope: RunScope, context: RunContext[Any, Any], notes: Notes) -> None:
    """Let every capability speak. What it said, and the changes that record it as said, are one commit."""
    if scope.carried.news_told:
        # This step is asked for again: its news was already told, and nothing of it is committed yet.
        return
    scope.carried.news_told = True
    for bundle in scope.agent.capabilities:
        try:
            texts = await bundle.news(context)
        except Exception as problem:
            log_exception("capability.news_failed", problem, session_id=scope.session.session_id)
            continue
        for text in texts:
            scope.carried.tell_with_reply(news_message(text))
    scope.carried.news_changes = tuple(notes.entries)
    notes.entries.clear()


async def tell_rest(scope: RunScope, step: int) -> tuple[Change, ...]:
    """Tell every capability that the run comes to rest; returns what they keep of it."""
    notes = Notes()
    for bundle in scope.agent.capabilities:
        try:
            await bundle.rest(run_context(scope, step, scope.draft(), notes))
        except Exception as problem:
            log_exception("capability.rest_failed", problem, session_id=scope.session.session_id)
    return tuple(notes.entries)
