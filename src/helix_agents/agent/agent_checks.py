"""What must hold for an agent to work, checked when it is defined."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from helix_agents.agent.budgets import check_budget
from helix_agents.agent.calling import is_async, is_generator
from helix_agents.agent.choices import check_whole
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.fallback_model import FallbackModel
from helix_agents.agent.history import check_processors
from helix_agents.agent.hooks import HOOK_NAMES, Hooks
from helix_agents.agent.memory import check_memory
from helix_agents.agent.model_settings import check_settings
from helix_agents.agent.names import check_name
from helix_agents.agent.output_checks import check_output_checks
from helix_agents.agent.provider_tools import check_provider_tools
from helix_agents.agent.signatures import NOTHING
from helix_agents.agent.skills import check_skills
from helix_agents.agent.state_type import NoState
from helix_agents.agent.tools import Tool
from helix_agents.agent.workspace import check_workspace
from helix_agents.domain.errors import DefinitionError

_SMALLEST = {"version": 1, "max_steps": 1, "retries": 0, "output_retries": 0}


def check_definition(given: Mapping[str, Any]) -> None:
    """Reject a definition that cannot work. Nothing is assumed about the values given, not even their types.

    Raises:
        DefinitionError: says why and what to do.
    """
    check_name("Agent", given["name"])
    subject = f"Agent {given['name']!r}"
    _check_model(given["model"], subject)
    for option, least in _SMALLEST.items():
        check_whole(subject, option, given[option], least)
    if not isinstance(given["instructions"], str) and not callable(given["instructions"]):
        raise DefinitionError(subject, "instructions has to be a text, or a function of the run that returns one.")
    if not isinstance(given["description"], str):
        raise DefinitionError(subject, f"description={given['description']!r} is not a string.")
    for option in ("stop_when", "migrate_state", "prices"):
        if given[option] is not None and not callable(given[option]):
            raise DefinitionError(subject, f"{option}={given[option]!r} is not a function.")
        if given[option] is not None and is_async(given[option]):
            raise DefinitionError(subject, f"{option} is async, but it is not awaited; make it a plain function.")
        if given[option] is not None and is_generator(given[option]):
            raise DefinitionError(
                subject, f"{option} is a generator, which runs nothing when it is called; use return."
            )
    check_settings(subject, given["settings"])
    if given["budget"] is not None:
        check_budget(given["budget"], subject)
    _check_compaction(given["compaction"], subject)
    check_processors(given["history_processors"], subject)
    check_output_checks(given["output_checks"], subject)
    check_memory(given["memory"], subject)
    if given["memory"] is not None and given["memory"].model is not None:
        _check_model(given["memory"].model, f"The memory of {subject}")
    if not isinstance(given["persistent_agents"], Sequence):
        raise DefinitionError(
            subject, f"persistent_agents={given['persistent_agents']!r} is not a list; write persistent_agents=[…]."
        )
    check_hooks(given["hooks"], subject)
    check_skills(given["skills"], given["preload_skills"], subject)
    check_workspace(given["workspace"], subject)
    check_provider_tools(given["provider_tools"], subject)
    _check_tools(given, subject)


def check_hooks(hooks: Iterable[object], subject: str) -> None:
    """Reject hooks that could not be called.

    Raises:
        DefinitionError: an item is not a Hooks object, or one of its hooks is not a function, or is a generator.
    """
    for each in hooks:
        if not isinstance(each, Hooks):
            raise DefinitionError(subject, f"hooks={each!r} is not a Hooks object; did you mean to create one?")
        problem = broken_hook(cast("Hooks[Any, Any]", each))
        if problem is not None:
            raise DefinitionError(subject, f"{problem}.")


def broken_hook(hooks: Hooks[Any, Any]) -> str | None:
    """What is wrong with a hook that would never do anything; None if each could be called."""
    for name in HOOK_NAMES:
        hook = hooks.implemented(name)
        if hook is not None and not callable(hook):
            return f"hook {name}={hook!r} is not a function"
        if hook is not None and name.startswith("around_"):
            if is_async(hook) or inspect.isasyncgenfunction(hook):
                return f"hook {name} is async; write a plain generator function that yields once"
        elif hook is not None and is_generator(hook):
            return f"hook {name} is a generator, which runs nothing when it is called; leave out the yield"
    return None


def is_adapter(model: object) -> bool:
    """Whether the object is a model that can be asked; the class of one cannot."""
    return not inspect.isclass(model) and callable(getattr(model, "ask", None))


def _check_model(model: Any, subject: str) -> None:
    if isinstance(model, str):
        provider, colon, name = model.partition(":")
        if not (provider and colon and name):
            raise DefinitionError(
                subject, f'model={model!r} names no provider; write "provider:model", such as "openai:gpt-5".'
            )
    elif not is_adapter(model):
        raise DefinitionError(subject, f'model={model!r} is neither a name like "openai:gpt-5" nor a model adapter.')
    elif isinstance(model, FallbackModel):
        for each in model.models:
            _check_model(each, subject)


def _check_compaction(compaction: Any, subject: str) -> None:
    if compaction is None:
        return
    if not isinstance(compaction, Compaction):
        raise DefinitionError(subject, f"compaction={compaction!r} is not a Compaction(above_tokens=…).")
    if compaction.model is not None:
        _check_model(compaction.model, f"The compaction of {subject}")


def _check_tools(given: Mapping[str, Any], subject: str) -> None:
    if not isinstance(given["tools"], Sequence):
        raise DefinitionError(subject, f"tools={given['tools']!r} is not a list of tools.")
    seen: set[str] = set()
    bundled = _bundled(given["capabilities"], subject)
    for tool in cast("Sequence[Tool[..., Any] | None]", (*given["tools"], *bundled)):
        if not isinstance(tool, Tool):
            cure = "decorate it with @tool, or, if it makes a tool, call it, as in ask_human()"
            if isinstance(getattr(tool, "__wrapped__", None), Tool):
                cure = "another decorator is above its @tool; put @tool on top"
            elif hasattr(tool, "as_tool"):
                cure = "give another agent with its .as_tool(), or in handoffs or persistent_agents"
            name = getattr(tool, "__name__", repr(tool))
            raise DefinitionError(subject, f"{name} in tools is not a tool; {cure}.")
        if tool.name in seen:
            raise DefinitionError(subject, f"two tools are called {tool.name!r}; rename one with name=….")
        seen.add(tool.name)
        _check_state_of(tool, given["state"], subject)
        _check_result_of(tool, given["output"], subject)


def _bundled(bundles: Any, subject: str) -> list[Any]:
    if not isinstance(bundles, Sequence) or isinstance(bundles, str):
        raise DefinitionError(subject, f"capabilities={bundles!r} is not a list of capabilities.")
    found: list[Any] = []
    for bundle in cast("Sequence[Any]", bundles):
        tools = getattr(bundle, "tools", None)
        if not isinstance(tools, Sequence):
            raise DefinitionError(
                subject,
                f"capabilities={bundle!r} is not a bundle of tools; call its function: state_capabilities().",
            )
        found.extend(cast("Sequence[Any]", tools))
    return found


def _check_state_of(tool: Tool[..., Any], state: Any, subject: str) -> None:
    """A tool written for one state type would find another one at run time."""
    wanted = NOTHING if tool.signature is None else tool.signature.wanted_state
    present = NoState if state is None else state
    if wanted in (NOTHING, Any, None, type(None)) or not inspect.isclass(wanted) or not inspect.isclass(present):
        return
    try:
        fits = issubclass(present, wanted)
    except TypeError:
        # A protocol with attributes cannot be checked against the class.
        return
    if not fits:
        name = wanted.__name__
        has = f"has state={present.__name__}"
        if state is None:
            has = (
                f"has no state; give it state={name}, or, if {name} is what deps opens, write ToolContext[Any, {name}]"
            )
        raise DefinitionError(subject, f"tool {tool.name!r} works on ToolContext[{name}], but the agent {has}.")


def _check_result_of(tool: Tool[..., Any], output: Any, subject: str) -> None:
    """The result of a finish_with tool is the output, which is text unless the agent declares a type."""
    if not tool.finish_with or output not in (None, str) or tool.signature is None:
        return
    returns = tool.signature.returns
    if returns not in (NOTHING, Any, str):
        shown = getattr(returns, "__name__", returns)
        raise DefinitionError(
            subject, f"tool {tool.name!r} finishes with {shown}, but the agent produces text; give it output={shown}."
        )
