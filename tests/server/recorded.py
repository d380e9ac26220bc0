"""Logs of runs as an engine writes them: steps of thoughts, text and calls, some of them begun twice."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from hypothesis import strategies as st

from helix_agents.domain.chunks import (
    ProviderToolEnd,
    ProviderToolInput,
    ProviderToolStart,
    RunStarted,
    SourceChunk,
    StatePatch,
    StepCommitted,
    StepDiscarded,
    StreamChunk,
    TextDelta,
    ThinkingChunk,
    ToolArgStreamDelta,
    ToolArgStreamEnd,
    ToolArgStreamStart,
    ToolEnd,
    ToolError,
    ToolStart,
)
from helix_agents.domain.messages import (
    AssistantMessage,
    Message,
    ProviderCall,
    Source,
    Thinking,
    ToolCall,
    ToolMessage,
)

RUN = "run_1"
SERVER_TOOLS = {"search", "publish"}

Searches: TypeAlias = Sequence[tuple[int, bool]]
"""What the provider searches for itself: before which word, and whether that fails."""

WORDS = st.text(alphabet="abc ", min_size=1, max_size=6)


class Log:
    """A recorded run: its chunks, and the messages each committed step left. A `rich` one has steps that change the
    state, and second thoughts between words."""

    def __init__(self, *, rich: bool = False) -> None:
        self._rich = rich
        self.chunks: list[StreamChunk] = []
        self.committed: list[tuple[int, tuple[Message, ...]]] = []
        self._add(RunStarted, 0, turn=1)

    def _add(self, kind: Any, step: int, **fields: Any) -> int:
        sequence = len(self.chunks) + 1
        header = {"session_id": "s", "run_id": RUN, "agent_type": "a", "step": step, "sequence": sequence}
        self.chunks.append(kind(**header, **fields))
        return sequence

    def step(
        self,
        step: int,
        thoughts: list[str],
        words: list[str],
        calls: list[tuple[str, bool]],
        attempt: int,
        searches: Searches = (),
    ) -> None:
        """Everything a step says, up to its commit. A search comes before its word."""
        if self._rich:
            self._add(StatePatch, step, patch=[{"op": "add", "path": "/done", "value": [step, attempt]}])
        early = words[:1] if self._rich and len(thoughts) > 1 else []
        for place, thought in enumerate(thoughts):
            for word in early if place == 1 else ():
                self._add(TextDelta, step, delta=word)
            self._add(ThinkingChunk, step, content=thought)
            self._add(ThinkingChunk, step, content="", is_complete=True)
        for place, word in enumerate(words[len(early) :], start=len(early)):
            self._search(step, place, searches, attempt)
            self._add(TextDelta, step, delta=word)
        self._search(step, len(words), searches, attempt)
        for at, _ in searches:
            self._add(SourceChunk, step, url=f"https://sea.example/{at}", title="Tides", start=0, end=1)
        for place, (name, _) in enumerate(calls):
            about = {"tool_call_id": f"call_{step}_{place}"}
            self._add(ToolArgStreamStart, step, **about, tool_name=name)
            self._add(ToolArgStreamDelta, step, **about, delta='{"n": ')
            self._add(ToolArgStreamDelta, step, **about, delta=f"{attempt}}}")
            self._add(ToolArgStreamEnd, step, **about)
        for place, (name, fails) in enumerate(calls):
            about = {"tool_call_id": f"call_{step}_{place}", "tool_name": name}
            self._add(ToolStart, step, **about, arguments={"n": attempt})
            if fails:
                self._add(ToolError, step, **about, error="no", code="tool_failed")
            else:
                self._add(ToolEnd, step, **about, result=place)

    def _search(self, step: int, place: int, searches: Searches, attempt: int) -> None:
        for number, (at, fails) in enumerate(searches):
            if at == place:
                about = {"tool_call_id": f"ws_{step}_{number}", "tool_name": "web_search"}
                self._add(ProviderToolStart, step, **about)
                self._add(ProviderToolInput, step, **about, arguments={"n": attempt})
                self._add(ProviderToolEnd, step, **about, result="no" if fails else [number], error=fails)

    def discard(self, step: int, first: int) -> None:
        self._add(StepDiscarded, step, from_sequence=first, to_sequence=len(self.chunks))

    def commit(
        self,
        step: int,
        thoughts: list[str],
        words: list[str],
        calls: list[tuple[str, bool]],
        attempt: int,
        searches: Searches = (),
    ) -> None:
        made = tuple(
            ToolCall(id=f"call_{step}_{place}", name=name, arguments={"n": attempt})
            for place, (name, _) in enumerate(calls)
        )
        said = AssistantMessage(
            id=f"{RUN}.{step}",
            text="".join(words),
            thinking=tuple(Thinking(text=thought) for thought in thoughts),
            tool_calls=made,
            provider_calls=tuple(
                ProviderCall(
                    id=f"ws_{step}_{number}",
                    name="web_search",
                    arguments={"n": attempt},
                    result="no" if fails else [number],
                    error=fails,
                    thoughts_before=len(thoughts),
                    text_before=len("".join(words[:at])),
                )
                for number, (at, fails) in enumerate(searches)
            ),
            sources=tuple(Source(url=f"https://sea.example/{at}", title="Tides", start=0, end=1) for at, _ in searches),
        )
        results = tuple(
            ToolMessage(
                tool_call_id=call.id,
                tool_name=call.name,
                content="no" if fails else place,
                error=fails,
                code="tool_failed" if fails else None,
            )
            for place, (call, (_, fails)) in enumerate(zip(made, calls, strict=True))
        )
        self.committed.append((len(self.chunks), (said, *results)))
        self._add(StepCommitted, step, step_id=f"{RUN}.{step}", checkpoint_id="cp", message_count=0)

    def at(self, cut: int) -> tuple[list[Message], list[StreamChunk]]:
        """What a snapshot holds when this many chunks are stored: messages, and the chunks after their anchor."""
        messages: list[Message] = []
        anchor = 0
        for end, stored in self.committed:
            if end <= cut:
                messages.extend(stored)
                anchor = end
        return messages, self.chunks[anchor:cut]


CALLS = st.lists(st.tuples(st.sampled_from(sorted(SERVER_TOOLS)), st.booleans()), max_size=3)


@st.composite
def logs(draw: st.DrawFn, *, rich: bool = False) -> Log:
    log = Log(rich=rich)
    for step in range(1, draw(st.integers(1, 4)) + 1):
        attempts = draw(st.integers(1, 3))
        for attempt in range(1, attempts + 1):
            thoughts, words = draw(st.lists(WORDS, max_size=2)), draw(st.lists(WORDS, max_size=4))
            calls = draw(CALLS)
            early = 1 if rich and len(thoughts) > 1 and words else 0
            places = st.tuples(st.integers(early, max(early, len(words))), st.booleans())
            searches = sorted(draw(st.lists(places, max_size=2)))
            if not (thoughts or words or calls or searches):
                words = ["x"]
            first = len(log.chunks) + 1
            log.step(step, thoughts, words, calls, attempt, searches)
            if attempt < attempts:
                # The process died somewhere in the step, and another one takes it up.
                del log.chunks[draw(st.integers(first, len(log.chunks))) :]
                log.discard(step, first)
            else:
                log.commit(step, thoughts, words, calls, attempt, searches)
    return log
