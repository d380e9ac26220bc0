"""Driving one run from the terminal: what `run`, `resume` and `retry` have in common."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from pydantic_core import to_jsonable_python

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry, deps_not_opened
from helix_agents.cli.agent_modules import agent_of_session, choose_agent, load_deps
from helix_agents.cli.exit_codes import ExitCode, exit_code_of
from helix_agents.cli.following import follow
from helix_agents.cli.opened import open_driving
from helix_agents.cli.options import DEFAULT_STORE
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, shown_json, shown_output
from helix_agents.cli.typed import typed
from helix_agents.cli.warnings_shown import show_warnings
from helix_agents.domain.errors import StillWaitingError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import UNKNOWN_OUTCOME, PendingCall, PendingFilter
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.urls import shown_url
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.models import open_model
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process import Executor

NOTHING_IS_KEPT = (
    "memory:// keeps nothing after this command; to continue later, use another --store, such as sqlite:///helix.db"
)

# Shown when a person is asked about a call whose outcome is unknown.
NOBODY_KNOWS = "its process died, and it is unknown whether the call took effect"


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where agents and sessions are, which model is used and what opens deps, as given on the command line; needed for
    the commands it suggests."""

    agents: str
    store_url: str
    model: str | None = None
    deps: str | None = None

    @property
    def forgets(self) -> bool:
        """Whether the store ends with this process, so that no other command finds anything there."""
        return self.store_url.startswith("memory:")

    def command(self, *words: str) -> str:
        """A command line that works here."""
        is_default = self.store_url == os.environ.get("HELIX_STORE", DEFAULT_STORE)
        store = () if is_default else ("--store", shown_url(self.store_url))
        return typed("helix", *words, *store)

    def going_on(self, command: str, *words: str) -> str:
        """The same for a command that runs these agents, with the model that was used here."""
        model = () if self.model is None else ("--model", self.model)
        deps = () if self.deps is None else ("--deps", self.deps)
        return self.command(command, self.agents, *words, *model, *deps)


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run that was started, and its agent."""

    agent: AnyAgent
    handle: RunHandle[Any]


Begin: TypeAlias = Callable[[Executor], Awaitable[Begun]]


async def drive(output: Output, place: Workplace, agents: AgentRegistry, begin: Begin) -> ExitCode:
    """Start a run, show it to its end, say how it ended and what can be done next."""
    show_warnings()
    async with open_driving(place.store_url, agents, load_deps(place.deps)) as helix:
        try:
            begun = await begin(helix)
        except StillWaitingError as problem:
            where = PendingFilter(root_session_id=problem.session_id)
            waiting = await whole_list(lambda offset: helix.list_pending(where, offset=offset, limit=MAX_LIMIT))
            _tell_waiting(output, problem.session_id, waiting, place)
            given_up = place.going_on("resume", problem.session_id, "--message", "TEXT")
            output.note(f"or give up the waiting calls with\n  {given_up}")
            raise
        output.note(f"session {begun.handle.session_id}")
        with stopping_by_key(output, begun.handle) as stopped:
            result = await follow(output, begun.handle)
        usage = await begun.handle.usage()
        output.answer({**document_of(result), "usage": plain(usage.tokens)})
        tell_end(output, begun.agent, result, place)
    return ExitCode.INTERRUPTED if stopped.is_set() and isinstance(result, Interrupted) else exit_code_of(result)


async def agent_for(helix: Executor, place: str, name: str | None, session_id: SessionId | None) -> AnyAgent:
    """The named agent, else the one that the session belongs to, else the only one there.

    Raises:
        AgentNotChosenError: no agent has that name, or several could be meant.
    """
    session = None if session_id is None or name is not None else await helix.sessions.find(session_id)
    if session is None:
        return choose_agent(helix.agents, place, name)
    return agent_of_session(helix.agents, place, session)


def find_model(name: str | None) -> LLMAdapter | None:
    """The model that the command line names in place of the agent's own."""
    return open_model(name) if name is not None else None


def check_agent(agent: AnyAgent, model: LLMAdapter | None, deps: str | None) -> None:
    """Refuse a run that would fail here, before anything is written; `model` may replace the agent's own.

    Raises:
        UnknownModelError, MissingExtraError: its model cannot be opened here.
        DepsNotOpenedError, DepsNotFoundError: its tools take deps, and nothing is named that opens them, or nothing is
            there.
    """
    _check(AgentRegistry([agent]), deps, models=model is None)


def check_agents(agents: AgentRegistry, deps: str | None) -> None:
    """Refuse agents whose runs would fail here, including those they delegate to; raises like `check_agent`."""
    _check(agents, deps, models=True)


def _check(agents: AgentRegistry, deps: str | None, *, models: bool) -> None:
    if load_deps(deps) is None and (missing := deps_not_opened(agents)) is not None:
        raise missing
    for agent in agents.everyone():
        for model in agent.models if models else ():
            if isinstance(model, str):
                open_model(model)


@contextmanager
def stopping_by_key(output: Output, handle: RunHandle[Any]) -> Generator[asyncio.Event, None, None]:
    """While the block runs, Ctrl-C asks the run to stop, keeping what it did; a second one leaves at once."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    asking: set[asyncio.Task[Any]] = set()

    def on_key() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        pressed.set()
        output.note("\nStopping; what was done is kept. Press Ctrl-C again to leave at once.")
        asking.add(loop.create_task(handle.interrupt("stopped from the keyboard")))

    # A loop outside the main thread, or on a platform without signals, leaves Ctrl-C to its caller.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, on_key)
    try:
        yield pressed
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)


def document_of(result: RunResult[Any]) -> dict[str, Any]:
    """How a run ended, for scripts; every outcome has the same fields."""
    failed = result if isinstance(result, Failed) else None
    return {
        "session_id": result.session_id,
        "run_id": result.run_id,
        "status": result.status,
        "output": _in_json(result.output) if isinstance(result, Completed) else None,
        "pending": plain(result.pending) if isinstance(result, Suspended) else [],
        "reason": result.reason if isinstance(result, Interrupted) else None,
        "error": {"code": failed.code, "message": failed.error, "retryable": failed.retryable} if failed else None,
    }


def tell_end(output: Output, agent: AnyAgent, result: RunResult[Any], place: Workplace) -> None:
    """Tell a person how a run ended, and the command that continues it."""
    session = result.session_id
    match result:
        case Completed():
            tell_output(output, agent, result)
        case Suspended(pending=calls):
            _tell_waiting(output, session, calls, place)
        case Interrupted():
            tell_next(output, place, "interrupted; continue with", "resume", session)
        case Failed(code=code, error=error):
            output.note(f"failed ({code}): {error}")
            tell_next(output, place, "try again from the last commit with", "retry", session)


def tell_next(output: Output, place: Workplace, does: str, command: str, *words: str) -> None:
    """Tell a person the command that continues the session, if the store keeps it."""
    output.note(NOTHING_IS_KEPT if place.forgets else f"{does}\n  {place.going_on(command, *words)}")


def _tell_waiting(output: Output, session: SessionId, calls: Sequence[PendingCall], place: Workplace) -> None:
    """Tell a person what a session waits for, and the commands that answer it."""
    for call in calls:
        output.note(f"waiting: {described(call)}")
        if call.reason == UNKNOWN_OUTCOME:
            output.note(f"  {NOBODY_KNOWS}: approve to run it again, deny to tell the model, or say what happened")
        for words in () if place.forgets else _answering(call):
            output.note(f"  {place.command('pending', *words, '--agents', place.agents)}")
    tell_next(output, place, "then continue with", "resume", session)


def tell_output(output: Output, agent: AnyAgent, result: Completed[Any]) -> None:
    """Show a structured output; a text was already shown as it was written."""
    if agent.output is not None:
        output.say(shown_output(_in_json(result.output)))


def _in_json(output: Any) -> Any:
    return to_jsonable_python(output, fallback=msgspec.to_builtins)


def described(call: PendingCall) -> str:
    """A waiting call in one line."""
    why = f" ({call.reason})" if call.reason else ""
    return f"{call.kind} {call.tool_name} {shown_json(call.input)}{why}"


def _answering(call: PendingCall) -> list[tuple[str, ...]]:
    where = (call.root_session_id, call.tool_call_id)
    if call.kind == "approval":
        decisions: list[tuple[str, ...]] = [("approve", *where), ("deny", *where)]
        return [*decisions, ("answer", *where, "WHAT HAPPENED")] if call.reason == UNKNOWN_OUTCOME else decisions
    return [("answer", *where, "ANSWER")]
