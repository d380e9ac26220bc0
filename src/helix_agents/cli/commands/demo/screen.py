"""The demonstration as a live view: processes, agents, the shop's order book and what happened."""

import io
import re
import sys
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from helix_agents.cli.commands.demo.closing import HELD
from helix_agents.cli.commands.demo.scene import Process, Scene, Speaker, quoted

WIDTH = 100
EVENTS_SHOWN = 10
READING_SECONDS = 2.0
# The columns of the agents' table: who, what they do, and in the rest of the line the end of what they said.
NAME_WIDTH, DOING_WIDTH = 11, 28
FRAME_WIDTH = 10
COLOURS = {"works": "green", "killed": "bold red", "left": "dim"}
SIGNS = {"works": "●", "killed": "✖", "left": "○"}


class Screen:
    """Redraws the scene whenever it changes."""

    reading_seconds = READING_SECONDS

    def __init__(self, *, asks: bool, svg: Path | None) -> None:
        # A picture is drawn to a file, at a size that fits a page; a terminal is drawn at its own size.
        self._svg = svg
        self._console = (
            Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO()) if svg is not None else Console()
        )
        self._asks = asks and sys.stdin.isatty()
        self._scene: Scene | None = None
        self._live = self._new_live()

    def begin(self, scene: Scene) -> None:
        self._scene = scene
        self._live.start()

    def event(self, sentence: str) -> None:
        self.refresh()

    def refresh(self) -> None:
        if self._live.is_started:
            self._live.update(self._draw())

    def ask(self, question: str) -> bool:
        if not self._asks:
            return True
        self._live.stop()
        self._console.print(self._draw())
        try:
            answer = Confirm.ask(f"[bold yellow]{question}[/]", console=self._console, default=True)
        except (KeyboardInterrupt, EOFError):
            self._console.print()
            raise click.Abort from None
        self._live = self._new_live()
        self._live.start()
        return answer

    def end(self, closing: list[str]) -> None:
        is_shown = not self._live.is_started
        self._live.stop()
        if is_shown:
            # A user who left instead of answering already has the scene above the question.
            return
        if self._svg is not None:
            # Intermediate drawings are of no use in a picture, which shows the end.
            self._console.export_text(clear=True)
        self._console.print(self._draw())
        for line in closing:
            self._console.print(_styled(line))
        if self._svg is not None:
            # The picture uses the reader's own monospaced font, so that it loads none from another server.
            picture = re.sub(
                r"@font-face \{.*?\}\s*", "", self._console.export_svg(title="helix demo"), flags=re.DOTALL
            )
            self._svg.write_text(picture, encoding="utf-8")

    def _new_live(self) -> Live:
        return Live(console=self._console, refresh_per_second=12, transient=True)

    def _draw(self) -> RenderableType:
        scene = self._scene
        assert scene is not None
        return Panel(
            Group(
                _processes(scene.processes),
                _speakers(list(scene.speakers.values()), self._console.width - FRAME_WIDTH - NAME_WIDTH - DOING_WIDTH),
                _book(scene),
                _events(scene),
            ),
            title="[bold]a research desk, and a kill -9[/]",
            border_style="cyan",
        )


def _processes(processes: list[Process]) -> RenderableType:
    line = Text("processes  ", style="bold")
    for process in processes:
        line.append(f"{SIGNS[process.state]} {process.pid} {process.task}", style=COLOURS[process.state])
        line.append("  " if process.state != "killed" else " (SIGKILL)  ", style="bold red")
    return line


def _speakers(speakers: list[Speaker], room: int) -> RenderableType:
    table = Table(box=None, padding=(0, 1), expand=True, show_header=False)
    table.add_column(width=NAME_WIDTH, style="bold")
    table.add_column(width=DOING_WIDTH)
    table.add_column(ratio=1, no_wrap=True)
    for speaker in speakers:
        colour = "green" if speaker.done else "yellow"
        text = " ".join(speaker.text.split())
        latest = text if len(text) <= room else f"…{text[1 - max(room, 2) :]}"
        table.add_row(speaker.name, Text(speaker.doing, style=colour), Text(latest, style="italic"))
    return table


def _book(scene: Scene) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(style="bold", width=NAME_WIDTH)
    table.add_column(no_wrap=True)
    for at, entry in enumerate(scene.book):
        table.add_row("order book" if at == 0 else "", f"{entry.deed} {quoted(entry.title)} by process {entry.pid}")
    return table


def _events(scene: Scene) -> RenderableType:
    lines = Text("\n")
    for at, sentence in scene.events[-EVENTS_SHOWN:]:
        lines.append(f"{at:5.1f} s  ", style="dim")
        lines.append(f"{sentence}\n", style="bold red" if "SIGKILL" in sentence else "")
    lines.no_wrap = True
    lines.overflow = "ellipsis"
    return lines


def _styled(line: str) -> Text:
    if line.startswith("ok "):
        return Text.assemble(("✔ ", "bold green"), line.removeprefix("ok "))
    if line.startswith("FAIL "):
        return Text.assemble(("✖ ", "bold red"), (line.removeprefix("FAIL "), "bold"))
    return Text(line, style="bold green" if line == HELD else "")
