"""What a person can type in a chat besides messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helix_agents.cli.plain import shown_count, shown_time
from helix_agents.cli.session_views import shown_message
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.sessions import InterruptSet

if TYPE_CHECKING:
    from helix_agents.cli.chatting import Chat


class Leave(Exception):  # noqa: N818 - no error: the person is done
    """The person leaves."""


@dataclass(frozen=True)
class Command:
    """One command: its description and its function."""

    about: str
    act: "Callable[[Chat, str], None]"


def _leave(_chat: "Chat", _rest: str) -> None:
    raise Leave


def _help(chat: "Chat", _rest: str) -> None:
    chat.output.say(explain())


def _interrupt(chat: "Chat", rest: str) -> None:
    outcome = chat.loop.run(chat.helix.interrupt(chat.session_id, rest or None))
    chat.output.note("interrupted" if isinstance(outcome, InterruptSet) else "nothing is running or waiting")


def _abort(chat: "Chat", rest: str) -> None:
    outcome = chat.loop.run(chat.helix.abort(chat.session_id, rest or None))
    chat.output.note("aborted" if isinstance(outcome, InterruptSet) else "nothing is running or waiting")


def _history(chat: "Chat", _rest: str) -> None:
    for message in chat.loop.run(chat.helix.sessions.snapshot(chat.session_id)).render():
        for line in shown_message(message):
            chat.output.say(line)


def _checkpoints(chat: "Chat", _rest: str) -> None:
    page = chat.loop.run(chat.helix.sessions.checkpoints(chat.session_id))
    chat.output.table(
        ("back", "checkpoint", "messages", "created"),
        [
            (str(at), each.checkpoint_id, str(each.message_count), shown_time(each.created_at))
            for at, each in enumerate(page.items)
        ],
    )
    if page.has_more:
        chat.output.note(f"{page.total - len(page.items)} earlier")


def _rewind(chat: "Chat", rest: str) -> None:
    # No conversation has so many checkpoints that the number needs more digits.
    at = 1 if not rest else int(rest) if rest.isdecimal() and len(rest) < 10 else None
    checkpoint_id = rest
    if at is not None:
        page = chat.loop.run(chat.helix.sessions.checkpoints(chat.session_id, offset=at, limit=1))
        if not page.items:
            many = "is only 1 checkpoint" if page.total == 1 else f"are only {page.total} checkpoints"
            chat.output.note(f"there {many}; /checkpoints lists them, /rewind {BEGINNING} goes back before the first")
            return
        checkpoint_id = page.items[0].checkpoint_id
    session = chat.loop.run(chat.helix.rewind(chat.session_id, checkpoint_id))
    chat.output.note(
        f"back at {checkpoint_id}, {shown_count(session.message_count, 'message')}; send a message, or /resume"
    )


def _usage(chat: "Chat", _rest: str) -> None:
    handle = chat.loop.run(chat.helix.get_handle(chat.agent, chat.session_id))
    tokens = chat.loop.run(handle.usage()).tokens if handle is not None else None
    chat.output.say("nothing yet" if tokens is None else f"{tokens.prompt} tokens in, {tokens.completion} out")


COMMANDS: dict[str, Command] = {
    "help": Command("show this list", _help),
    "exit": Command("leave; the session is kept", _leave),
    "quit": Command("the same as /exit", _leave),
    "interrupt": Command("stop the agent while it works, or give up waiting calls", _interrupt),
    "abort": Command("fail the turn for good", _abort),
    "resume": Command("continue a turn that is open", lambda chat, _: chat.resume()),
    "retry": Command("retry a failed turn from its last commit", lambda chat, _: chat.retry()),
    "history": Command("show the whole conversation", _history),
    "checkpoints": Command("list the checkpoints to rewind to", _checkpoints),
    "rewind": Command("go back one checkpoint; /rewind 2 goes back two, /rewind CHECKPOINT to that one", _rewind),
    "usage": Command("show the tokens used so far", _usage),
}


def command_in(said: str) -> str | None:
    """The name of the command that a line begins with; None if it is none."""
    name = said[1:].partition(" ")[0].lower()
    return name if said.startswith("/") and name in COMMANDS else None


def explain() -> str:
    """All commands, one per line."""
    return "\n".join(f"  /{name:<12} {command.about}" for name, command in COMMANDS.items())
