"""An output while the model still writes it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from helix_agents.agent.output import OutputType
from helix_agents.domain.chunks import (
    Output,
    StepDiscarded,
    StreamChunk,
    StreamResync,
    TextDelta,
    ToolArgStreamDelta,
    ToolArgStreamStart,
    Truncated,
)
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.records import JSON
from helix_agents.ports.llm import FINISH_TOOL


async def growing_output(
    chunks: AsyncGenerator[StreamChunk, None],
    session_id: SessionId,
    type_of: Callable[[str], OutputType[Any] | None],
) -> AsyncGenerator[JSON, None]:
    """The output of a run as far as it is written, whenever there is more of it, and at last the output itself, all
    under the names that the model uses. `type_of` says what the agent of this name hands in; None is a text.

    What is not complete is not validated. It starts again when the model does: in another step, after a reply that was
    taken back, or when it hands in another output.
    """
    draft = _Draft(type_of)
    last: JSON = None
    async with aclosing(chunks):
        async for chunk in chunks:
            if isinstance(chunk, Output) and chunk.session_id == session_id:
                output_type = type_of(chunk.agent_type)
                so_far = chunk.output if output_type is None else output_type.as_written(chunk.output)
            else:
                so_far = draft.after(chunk, session_id)
                if so_far is None:
                    continue
            if so_far != last:
                last = so_far
                yield so_far


class _Draft:
    """What the model has written of the output in the step that is being read."""

    def __init__(self, type_of: Callable[[str], OutputType[Any] | None]) -> None:
        self._type_of = type_of
        self._torn_step: int | None = -1
        self._forget()

    def after(self, chunk: StreamChunk, session_id: SessionId) -> JSON:
        """The output so far, if this chunk may have changed it."""
        match chunk:
            # These are about the stream, whichever session they name: that of the root, if this one is below it.
            case StepDiscarded(from_sequence=first, to_sequence=last):
                if first <= self._begun_at <= last:
                    self._forget()
            case StreamResync():
                self._forget()
            case Truncated():
                # Of the step that comes next, the beginning may be missing.
                self._forget()
                self._torn_step = None
            case _ if chunk.session_id == session_id:
                if self._torn_step is None:
                    self._torn_step = chunk.step
                return self._with(chunk)
            case _:
                pass
        return None

    def _with(self, chunk: StreamChunk) -> JSON:
        match chunk:
            case TextDelta() if chunk.step != self._torn_step and self._type_of(chunk.agent_type) is None:
                if chunk.step != self._step:
                    self._step, self._begun_at, self._written = chunk.step, chunk.sequence, ""
                self._written += chunk.delta
                return self._written
            case ToolArgStreamStart(tool_name=name) if name == FINISH_TOOL:
                self._call, self._begun_at, self._written = chunk.tool_call_id, chunk.sequence, ""
            case ToolArgStreamDelta() if chunk.tool_call_id == self._call:
                output_type = self._type_of(chunk.agent_type)
                self._written += chunk.delta
                return None if output_type is None else output_type.so_far(self._written)
            case _:
                pass
        return None

    def _forget(self) -> None:
        self._step: int = -1
        self._begun_at: int = -1
        self._call: ToolCallId | None = None
        self._written = ""
