"""Finding what a command line names: agents as `module:name`, `module` alone or a file, and what opens their deps."""

import inspect
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.errors import HelixError, SetupError
from helix_agents.domain.sessions import SessionState, SessionSummary

if TYPE_CHECKING:
    from helix_agents.engine.services import OpenDeps


class AgentsNotFoundError(SetupError):
    """The agents that a command line names do not exist, cannot be imported, or are something else."""

    code = "agents_not_found"
    place: str
    problem: str

    def __str__(self) -> str:
        return f"No agents at {self.place!r}: {self.problem}"


class AgentNotChosenError(SetupError):
    """The agents that a command line names exist, but the one that is needed is missing or was not named."""

    code = "unknown_agent"
    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place!r} {self.problem}"


class DepsNotFoundError(SetupError):
    """The deps that a command line names do not exist, cannot be imported, or are something else."""

    code = "deps_not_found"
    place: str
    problem: str

    def __str__(self) -> str:
        return f"No deps at {self.place!r}: {self.problem}"


def load_agents(place: str) -> AgentRegistry:
    """The agents at a place. The current directory is importable, as it is for `python -m`.

    Raises:
        AgentsNotFoundError: there are none; says why.
    """
    where, _, name = place.partition(":")
    module = import_place(place, where)
    if not name:
        found: list[Any] = [value for value in vars(module).values() if isinstance(value, (Agent, AgentRegistry))]
        if not found:
            raise AgentsNotFoundError(place, f"module {module.__name__!r} defines none; name one as module:name.")
        return _registry(place, [agent for value in found for agent in _agents_in(place, value)])
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            has = ", ".join(key for key, item in vars(module).items() if isinstance(item, (Agent, AgentRegistry)))
            raise AgentsNotFoundError(place, f"{where} has no {name!r}; agents there: {has or 'none'}.")
        value = getattr(value, part)
    return _registry(place, _agents_in(place, value))


def load_deps(place: str | None) -> "OpenDeps | None":
    """What opens the deps of tools, at a place that is named like one of agents; None if no place is given.

    Raises:
        DepsNotFoundError: there is nothing of the kind; says why.
    """
    if place is None:
        return None
    where, _, name = place.partition(":")
    if not name:
        raise DepsNotFoundError(place, "write module:name or file.py:name.")
    try:
        module = import_place(place, where)
    except AgentsNotFoundError as problem:
        raise DepsNotFoundError(place, problem.problem) from problem
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        what = "does not exist" if value is None else f"is {type(value).__name__}"
        raise DepsNotFoundError(place, f"{name!r} {what}; it has to be a function like an executor's deps.")
    return cast("OpenDeps", value)


def choose_agent(agents: AgentRegistry, place: str, name: str | None) -> AnyAgent:
    """The agent for a new session: the named one, else the only one to which no other agent there delegates.

    Raises:
        AgentNotChosenError: no agent has that name, or several could be meant.
    """
    if name is not None:
        return _named(agents, place, name, f"has no agent {name!r}")
    known = list(agents)
    delegated = {each.name for agent in known for each in known if each is not agent and _delegates_to(agent, each)}
    heads = [agent for agent in known if agent.name not in delegated] or known
    if len(heads) > 1:
        names = ", ".join(agent.name for agent in heads)
        raise AgentNotChosenError(place, f"has several agents ({names}); choose one with --agent NAME.")
    return heads[0]


def agent_of_session(agents: AgentRegistry, place: str, session: SessionState | SessionSummary) -> AnyAgent:
    """The agent that a stored session belongs to.

    Raises:
        AgentNotChosenError: the module has no agent of that name.
    """
    name = session.agent_type
    return _named(agents, place, name, f"has no agent {name!r}, which started session {session.session_id!r}")


def _named(agents: AgentRegistry, place: str, name: str, problem: str) -> AnyAgent:
    agent = agents.find(name)
    if agent is None:
        known = ", ".join(sorted(each.name for each in agents))
        raise AgentNotChosenError(place, f"{problem}; agents there: {known}.")
    return agent


def _delegates_to(agent: AnyAgent, other: AnyAgent) -> bool:
    return AgentRegistry([agent]).find(other.name) is other


def _agents_in(place: str, value: Any) -> list[AnyAgent]:
    if isinstance(value, AgentRegistry):
        return list(value)
    items = cast("list[Any]", value if isinstance(value, (list, tuple)) else [value])
    if not items or not all(isinstance(item, Agent) for item in items):
        raise AgentsNotFoundError(place, _is_no_agent(cast("object", value)))
    return [cast("AnyAgent", item) for item in items]


def _is_no_agent(value: object) -> str:
    if inspect.isfunction(value):
        return f"it is a function; give what it returns a name in the module: agent = {value.__name__}()."
    return f"it is of type {type(value).__name__}; it has to be an Agent, a list of them or an AgentRegistry."


def _registry(place: str, agents: list[AnyAgent]) -> AgentRegistry:
    if not agents:
        raise AgentsNotFoundError(place, "the registry is empty.")
    return AgentRegistry(agents)


def import_place(place: str, where: str) -> ModuleType:
    """The module or file that a command line names as part of a place.

    Raises:
        AgentsNotFoundError: it is missing, or cannot be imported.
    """
    if not where:
        raise AgentsNotFoundError(place, "write module:name, file.py:name, or either without the name.")
    if where.endswith(".py"):
        file = Path(where).resolve()
        if not file.is_file():
            raise AgentsNotFoundError(place, f"there is no file {where}.")
        name, folder = file.stem, file.parent
    elif Path(where).is_dir() and ("/" in where or where.startswith(".")):
        raise AgentsNotFoundError(place, f"it is a folder; name a file in it, such as {where.rstrip('/')}/agents.py.")
    else:
        name, folder = where, Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise AgentsNotFoundError(
                place, f"there is no module {missing!r} in this folder or installed."
            ) from problem
        raise AgentsNotFoundError(place, f"importing it needs {missing!r}, which is not installed.") from problem
    except HelixError:
        raise
    except (Exception, SystemExit) as problem:
        raise AgentsNotFoundError(place, f"importing it failed: {_where(problem)}") from problem


def _where(problem: BaseException) -> str:
    """The problem in one line, with the last place outside this library that it came from."""
    at = problem.__traceback__
    line = ""
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not file.startswith("<") and "importlib" not in file and file != __file__:
            line = f" ({Path(file).name}, line {at.tb_lineno})"
        at = at.tb_next
    text = str(problem) or "no reason given"
    return f"{type(problem).__name__}: {text}{line}"
