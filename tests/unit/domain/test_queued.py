"""Turns that wait: what pages are shown of them."""

from helix_agents.domain.messages import UserMessage
from helix_agents.domain.queued import QueuedTurn, run_id_for, waiting_messages


def _turn(run_id: str, *messages: UserMessage) -> QueuedTurn:
    return QueuedTurn(session_id="s-1", run_id=run_id, messages=messages)


def test_a_message_that_would_join_its_turn_keeps_its_id_and_any_other_is_named_after_its_run() -> None:
    joins = _turn(run_id_for("s-1", "m-2"), UserMessage(content="first"), UserMessage(content="then", id="m-2"))
    other = _turn("run_9", UserMessage(content="later", id="m-3"))
    shown = [(each.id, each.message.content) for each in waiting_messages([joins, other], set())]
    assert shown == [(f"{joins.run_id}.0", "first"), ("m-2", "then"), ("run_9.0", "later")]


def test_what_is_hidden_and_what_has_begun_is_not_shown_as_waiting() -> None:
    hidden = _turn("run_1", UserMessage(content="news", hidden=True), UserMessage(content="said"))
    running = _turn("run_2", UserMessage(content="begun"))
    told = _turn("run_3", UserMessage(content="in the conversation", id="m-1"))
    shown = waiting_messages([hidden, running, told], {"run_2", None, "m-1"})
    assert [(each.id, each.message.content) for each in shown] == [("run_1.1", "said")]
