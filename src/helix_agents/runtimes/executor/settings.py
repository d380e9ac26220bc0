"""The settings of executors, and clear errors for settings that cannot work."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.agent_checks import check_hooks
from helix_agents.agent.choices import check_whole, is_number
from helix_agents.agent.hooks import SomeHooks, each_hooks
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.errors import DefinitionError
from helix_agents.engine.requests.workspaces import workspace_providers
from helix_agents.engine.services import EngineOptions, OpenDeps
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.locks import LockManager
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.runtimes.executor.webhooks import Webhook


class RunSettings(TypedDict, total=False):
    """Settings for how runs are driven, common to all executors."""

    hooks: SomeHooks
    options: EngineOptions | None
    grace: float
    janitor_seconds: float | None
    resume_grace_ms: int
    stream_retention_ms: int
    webhooks: Iterable[Webhook]


class ExecutorSettings(RunSettings, total=False):
    """Settings common to all executors. `locks` are for your own code to use; the engine needs none."""

    locks: LockManager | None
    entries: EntryStore | None
    memories: MemoryStore | None
    on_close: Callable[[], Awaitable[None]] | None


class OpenSettings(RunSettings, total=False):
    """What `open` of every executor accepts: the parts of a backend come from its URL."""

    agents: Iterable[AnyAgent]
    deps: OpenDeps | None
    max_running: int | None
    max_parallel_tools: int | None


# What opening a backend provides, and callers do not pass.
_PARTS = {"self", "runtime", "settings", "state", "streams", "usage", "locks", "entries", "memories", "on_close"}


def checked_agents(kind: type[Any], agents: Iterable[AnyAgent]) -> Iterable[AnyAgent]:
    """The agents given to an executor.

    Raises:
        DefinitionError: it is a single agent and not a list, or the list contains something else.
    """
    if isinstance(agents, Agent):
        raise DefinitionError(kind.__name__, f"agents={agents!r} is one agent, not a list; write agents=[…].")
    if not isinstance(agents, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(kind.__name__, f"agents={agents!r} is not a list; write agents=[…].")
    given = list(agents)
    for each in given:
        if not isinstance(each, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(kind.__name__, f"{each!r} in agents is not an Agent.")
    return given


def check_memory_has_a_place(agent: AnyAgent, memories: MemoryStore | None) -> None:
    """Reject an agent that has a memory, or delegates to one that has, if there is no store for memories.

    Raises:
        DefinitionError: names the agent, and says what to do.
    """
    if memories is not None:
        return
    for each in AgentRegistry([agent]).everyone():
        if each.memory is not None:
            raise DefinitionError(
                f"Agent {each.name!r}",
                "it has a memory, but this executor cannot store one; open it by a URL, or give it memories=….",
            )


def check_workspaces_apart(agent: AnyAgent, known: AgentRegistry) -> None:
    """Reject an agent if sessions could not tell its workspaces, or those of an agent below it, from another agent's.

    Raises:
        DefinitionError: names the agent, and says what to do.
    """
    given = AgentRegistry([agent]).everyone()
    # It may be a newer version of a known agent.
    names = {each.name for each in given}
    workspace_providers((*given, *(each for each in known.everyone() if each.name not in names)))


def check_deps(kind: type[Any], deps: object) -> None:
    """Reject deps that are not the function that opens them.

    Raises:
        DefinitionError: it is no function.
    """
    if deps is not None and not callable(deps):
        cure = "give one that takes the session's id and its user, and returns an async context manager"
        raise DefinitionError(kind.__name__, f"deps={deps!r} is not a function; {cure}.")


def check_room(kind: type[Any], **limits: int | None) -> None:
    """Reject a limit under which nothing would ever run.

    Raises:
        DefinitionError: it is below 1.
    """
    for name, limit in limits.items():
        if limit is not None:
            check_whole(kind.__name__, name, limit, 1, other="; None means no limit")


def check_settings(kind: type[Any], given: Mapping[str, Any]) -> None:
    """Reject a setting that this kind of executor would ignore or could not use, and a janitor that never rests.

    Raises:
        DefinitionError: names the setting, and lists the valid ones.
    """
    between = given.get("janitor_seconds")
    if between is not None and not (is_number(between) and between > 0):
        raise DefinitionError(
            kind.__name__,
            f"janitor_seconds={between!r} is not a number of seconds between two rounds; None means no janitor.",
        )
    grace = given.get("grace", 0)
    if not (is_number(grace) and grace >= 0):
        raise DefinitionError(kind.__name__, f"grace={grace!r} is not a number of seconds.")
    check_hooks(each_hooks(given.get("hooks")), kind.__name__)
    if not isinstance(given.get("options"), EngineOptions | None):
        raise DefinitionError(kind.__name__, f"options={given['options']!r} is not an EngineOptions(…).")
    own = inspect.signature(kind.__init__).parameters
    for name in given:
        if name in own or name in ExecutorSettings.__annotations__:
            continue
        known = sorted({*own, *ExecutorSettings.__annotations__} - _PARTS)
        close = get_close_matches(name, known, n=1)
        meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
        raise DefinitionError(kind.__name__, f"there is no setting {name!r}; {meant}")
