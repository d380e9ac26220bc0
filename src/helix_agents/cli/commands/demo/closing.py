"""The last words of the demonstration: what was counted, and what to try next."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from helix_agents.cli.commands.demo import desk
from helix_agents.cli.commands.demo.proof import Check
from helix_agents.cli.commands.demo.worker import SESSION_ID
from helix_agents.cli.typed import typed

HELD = "Nothing was lost, and nothing was done twice."


def closing_words(checks: Sequence[Check], *, held: bool, kept_at: str | None) -> list[str]:
    """`kept_at` is the URL of the store if it is kept for the user to look at."""
    verdict = HELD if held else "Not everything held. That is a bug."
    suggestions = list(_suggestions(kept_at))
    width = max(len(command) for command, _ in suggestions)
    return [
        *map(str, checks),
        "",
        verdict,
        "",
        "Try next:",
        *(f"  {command:<{width}}  {what}" for command, what in suggestions),
        "",
        f"The agents you just watched: {_near(Path(desk.__file__))}",
    ]


def _suggestions(kept_at: str | None) -> Iterator[tuple[str, str]]:
    if kept_at is None:
        yield typed("helix", "demo", "--keep", "desk"), "run it again and keep its store to explore"
    else:
        yield typed("helix", "sessions", "messages", SESSION_ID, "--store", kept_at), "what the editor said and did"
    if Path("examples/first_agent.py").exists():
        yield typed("helix", "chat", "examples/ask_a_human.py"), "chat with an agent: approve, rewind"
        yield typed("python", "examples/first_agent.py"), "your first agent, in 12 lines"
    else:
        yield typed("helix", "chat", "FILE.py"), "chat with an agent that you wrote"
    yield typed("helix", "doctor"), "check your installation and your store"


def _near(file: Path) -> str:
    """The file relative to the current directory; its full path if there is no such path."""
    with suppress(FileNotFoundError, ValueError):
        return str(file.relative_to(Path.cwd()))
    return str(file)
