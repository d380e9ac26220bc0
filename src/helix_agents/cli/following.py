"""A run as a terminal shows it: the answer as it is written, and beside it what the agent does."""

from collections.abc import Callable
from typing import Any

from helix_agents.agent.names import SUBAGENT
from helix_agents.cli.output import Output
from helix_agents.cli.plain import shown_json, source_line
from helix_agents.domain.chunks import (
    Custom,
    ProviderToolEnd,
    ProviderToolInput,
    RunStarted,
    SourceChunk,
    StepDiscarded,
    StreamChunk,
    SubagentEnd,
    SubagentStart,
    TextDelta,
    ToolEnd,
    ToolError,
    ToolStart,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.parts import result_in_words
from helix_agents.domain.results import RunResult
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.runtimes.executor.handle import RunHandle

MOST_SHOWN = 100


class Follower:
    """Shows one run's chunks, one after another. Text goes to standard output, everything else to standard error."""

    def __init__(self, output: Output, session_id: SessionId) -> None:
        self._output = output
        self._session_id = session_id
        self._in_a_line = False
        self._sources: set[str] = set()

    def show(self, chunk: StreamChunk) -> None:
        """Show a chunk."""
        if isinstance(chunk, TextDelta) and chunk.session_id == self._session_id:
            self._output.say(chunk.delta, end=False)
            self._in_a_line = bool(chunk.delta) and not chunk.delta.endswith("\n")
        elif (note := _note(chunk)) is not None and note not in self._sources:
            if isinstance(chunk, SourceChunk):
                # An answer may refer to one page many times.
                self._sources.add(note)
            self.end_line()
            self._output.note(note)

    def end_line(self) -> None:
        """Start a new line unless one was just started."""
        if self._in_a_line:
            self._output.say()
            self._in_a_line = False


def _note(chunk: StreamChunk) -> str | None:
    who = "" if chunk.parent_tool_call_id is None else f"{chunk.agent_type}: "
    match chunk:
        case ToolStart(tool_name=name, arguments=arguments) if _is_worth_telling(name):
            return f"· {who}{name} {_short(arguments)}"
        case ToolEnd(tool_name=name, result=result, in_parts=in_parts) if _is_worth_telling(name):
            return f"· {who}{name} → {_short(result_in_words(result, in_parts=in_parts))}"
        case ToolError(tool_name=name, error=error) if name == FINISH_TOOL:
            return f"· {who}the output was refused: {_short(error)}"
        case ToolError(tool_name=name, error=error):
            return f"· {who}{name} failed: {_short(error)}"
        case ProviderToolInput(tool_name=name, arguments=arguments):
            return f"· {who}{name} {_short(arguments)} (at the provider)"
        case ProviderToolEnd(tool_name=name, result=result, error=failed):
            return f"· {who}{name} {'failed:' if failed else '→'} {_short(result)}"
        case SourceChunk():
            return f"· {who}source {source_line(chunk)}"
        case SubagentStart(child_agent_type=agent):
            return f"· {agent} starts"
        case SubagentEnd(child_agent_type=agent, status=status):
            return f"· {agent} {status}"
        case RunStarted(attempt=attempt) if attempt > 1:
            return f"· attempt {attempt} continues"
        case StepDiscarded():
            return "· the last step is repeated"
        case Custom(name=name, data=data):
            return f"· {who}{name} {_short(data)}"
        case _:
            return None


def _is_worth_telling(tool_name: str) -> bool:
    """Whether to show a call: children report their own start and end, and the final output is shown as such."""
    return tool_name != FINISH_TOOL and not tool_name.startswith(SUBAGENT)


def _short(value: Any) -> str:
    text = " ".join(shown_json(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


async def follow(
    output: Output, handle: RunHandle[Any], *, seen: Callable[[StreamChunk], object] | None = None
) -> RunResult[Any]:
    """Show the run from its beginning to its end, and return how it ended."""
    follower = Follower(output, handle.session_id)
    async for chunk in handle.stream():
        follower.show(chunk)
        if seen is not None:
            seen(chunk)
    result = await handle.result()
    follower.end_line()
    return result
