"""How the demonstration looks: a live view on a terminal, lines anywhere else, nothing for scripts."""

import sys
from pathlib import Path
from typing import Protocol

from helix_agents.cli.commands.demo.scene import Scene
from helix_agents.cli.output import Output


class View(Protocol):
    """What the director needs from a view of the scene."""

    @property
    def reading_seconds(self) -> float:
        """How long a viewer needs to take in what matters most."""
        ...

    def begin(self, scene: Scene) -> None:
        """Start to show the scene."""
        ...

    def event(self, sentence: str) -> None:
        """Something happened."""
        ...

    def refresh(self) -> None:
        """The scene changed."""
        ...

    def ask(self, question: str) -> bool:
        """Let the person decide, or decide for them if they cannot be asked."""
        ...

    def end(self, closing: list[str]) -> None:
        """Show the scene as it ended, and what follows from it."""
        ...


class LinesView:
    """One line per event; silent if a script wants JSON."""

    reading_seconds = 0.0

    def __init__(self, output: Output, *, asks: bool) -> None:
        self._output = output
        self._asks = asks and not output.as_json and sys.stdin.isatty()
        self._scene: Scene | None = None

    def begin(self, scene: Scene) -> None:
        self._scene = scene

    def event(self, sentence: str) -> None:
        at = 0.0 if self._scene is None else self._scene.seconds
        self._output.say(f"{at:5.1f} s  {sentence}")

    def refresh(self) -> None:
        pass

    def ask(self, question: str) -> bool:
        if self._asks:
            return self._output.confirm(question, default=True)
        self._output.say(f"         {question} yes (answered automatically)")
        return True

    def end(self, closing: list[str]) -> None:
        self._output.say()
        for line in closing:
            self._output.say(line)


def choose_view(output: Output, *, plain: bool, asks: bool, svg: Path | None) -> View:
    """The best view this terminal can show."""
    if svg is None and (plain or output.as_json or not sys.stdout.isatty()):
        return LinesView(output, asks=asks)
    from helix_agents.cli.commands.demo.screen import Screen

    return Screen(asks=asks, svg=svg)
