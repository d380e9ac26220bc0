"""What a viewer of the demo knows: processes, speakers, orders and what happened so far."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from helix_agents.cli.commands.demo.shop import Entry
from helix_agents.domain.chunks import (
    Output,
    StepCommitted,
    StepDiscarded,
    StreamChunk,
    SubagentEnd,
    SubagentStart,
    TextDelta,
    ToolApprovalRequest,
    ToolEnd,
    ToolStart,
)
from helix_agents.domain.ids import SessionId

# How much of an answer is shown; every event fits on one line of an 80-column terminal.
TOLD = 44


def quoted(title: str) -> str:
    """A title in a sentence."""
    return f"“{title}”"


@dataclass(kw_only=True)
class Process:
    """One worker."""

    pid: int
    task: str
    state: Literal["works", "killed", "left"] = "works"


@dataclass(kw_only=True)
class Speaker:
    """One agent in its session: what it does and what it said."""

    name: str
    doing: str = "thinking"
    done: bool = False
    said: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def text(self) -> str:
        return "".join(self.said.values())


class Scene:
    """The demonstration so far, assembled from the stream and from what the director tells."""

    def __init__(self, on_event: Callable[[str], object]) -> None:
        self._on_event = on_event
        self._began = time.monotonic()
        self.processes: list[Process] = []
        self.speakers: dict[SessionId, Speaker] = {}
        self.book: list[Entry] = []
        self.events: list[tuple[float, str]] = []
        self.sequences: list[int] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def tell(self, sentence: str) -> None:
        """Something happened that every viewer should notice."""
        self.events.append((self.seconds, sentence))
        self._on_event(sentence)

    def see(self, chunk: StreamChunk) -> None:
        """A chunk came in, from whichever process."""
        self.sequences.append(chunk.sequence)
        speaker = self.speakers.get(chunk.session_id)
        if speaker is None:
            speaker = self.speakers[chunk.session_id] = Speaker(name=chunk.agent_type)
        match chunk:
            case TextDelta(delta=delta, sequence=sequence):
                speaker.said[sequence] = delta
                speaker.doing = "writing"
            case StepDiscarded(from_sequence=first, to_sequence=last):
                for each in self.speakers.values():
                    each.said = {at: text for at, text in each.said.items() if not first <= at <= last}
            case ToolStart(tool_name="buy_article", arguments=arguments):
                speaker.doing = "buying an article"
                self.tell(f"a researcher orders {quoted(str(arguments['title']))}")
            case ToolEnd(tool_name="buy_article", result=result):
                speaker.doing = "reading"
                if "found in the order book" in str(result):
                    self.tell("the order in flight reached the shop, so it is not placed again")
            case SubagentStart(child_session_id=child, child_agent_type=agent):
                self.speakers.setdefault(child, Speaker(name=agent))
                speaker.doing = "waiting for researchers"
            case SubagentEnd(child_session_id=child, status=status):
                child_speaker = self.speakers.setdefault(child, Speaker(name="researcher"))
                if not child_speaker.done:
                    # A recovered run says it again: the step it belongs to was not committed.
                    self.tell(f"a researcher reports: {child_speaker.text.strip()[:TOLD]}…")
                child_speaker.doing, child_speaker.done = status, True
            case ToolApprovalRequest(tool_name=name):
                speaker.doing = f"waiting for approval: {name}"
            case StepCommitted(sequence=sequence):
                speaker.said[sequence] = " "
            case Output() if chunk.parent_tool_call_id is None:
                speaker.doing, speaker.done = "completed", True
            case _:
                pass
