"""An output while the model still writes it."""

from collections.abc import AsyncGenerator, AsyncIterable
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
)
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.records import JSON
from helix_agents.ports.llm import FINISH_TOOL


async def growing_output(
    chunks: AsyncIterable[StreamChunk], session_id: SessionId, output_type: OutputType[Any] | None
) -> AsyncGenerator[JSON, None]:
    """The output of a run as far as it is written, whenever there is more of it, and at last the output itself.

    What is not complete is not validated. It starts again when the model does: in another step, after a reply that was
    taken back, or when it hands in another output.
    """
    draft = _Draft(output_type)
    last: JSON = None
    async for chunk in chunks:
        if chunk.session_id != session_id:
            continue
        so_far = chunk.output if isinstance(chunk, Output) else draft.after(chunk)
        if so_far is not None and so_far != last:
            last = so_far
            yield so_far


class _Draft:
    """What the model has written of the output in the step that is being read."""

    def __init__(self, output_type: OutputType[Any] | None) -> None:
        self._type = output_type
        self._step = 0
        self._call: ToolCallId | None = None
        self._written = ""

    def after(self, chunk: StreamChunk) -> JSON:
        """The output so far, if this chunk may have changed it."""
        match chunk:
            case TextDelta() if self._type is None:
                if chunk.step != self._step:
                    self._step, self._written = chunk.step, ""
                self._written += chunk.delta
                return self._written
            case ToolArgStreamStart(tool_name=name) if name == FINISH_TOOL and self._type is not None:
                self._call, self._written = chunk.tool_call_id, ""
            case ToolArgStreamDelta() if chunk.tool_call_id == self._call and self._type is not None:
                self._written += chunk.delta
                return self._type.so_far(self._written)
            case StepDiscarded() | StreamResync():
                self._call, self._written = None, ""
            case _:
                pass
        return None
