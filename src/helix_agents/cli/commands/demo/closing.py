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
    """`kept_at` is the URL of the store, where it is left for the person to look at."""
    verdict = HELD if held else "That did not hold, and that is a bug."
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
        yield typed("helix", "demo", "--keep", "desk"), "again, and leave its store to look at"
    else:
        yield typed("helix", "sessions", "messages", SESSION_ID, "--store", kept_at), "what the editor said and did"
    if Path("examples/first_agent.py").exists():
        yield typed("helix", "chat", "examples/ask_a_human.py"), "talk to an agent, approve, rewind"
        yield typed("python", "examples/first_agent.py"), "an agent of your own, in 12 lines"
    else:
        yield typed("helix", "chat", "FILE.py"), "talk to an agent you wrote"
    yield typed("helix", "doctor"), "what is installed, and how your store is"


def _near(file: Path) -> str:
    """The file as somebody in this directory would name it; from one that was deleted, by its whole path."""
    with suppress(FileNotFoundError, ValueError):
        return str(file.relative_to(Path.cwd()))
    return str(file)
