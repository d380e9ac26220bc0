"""A workspace: the folder of files that an agent has in each of its sessions, and what it may do there."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from inspect import isclass
from typing import Any, cast, get_args

from helix_agents.agent.calling import is_async
from helix_agents.agent.choices import check_choice, check_seconds, check_switch, check_whole
from helix_agents.agent.outcomes import ApprovalPredicate, Effect
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.ports.workspaces import WorkspaceCapability, WorkspaceProvider

_METHODS = ("open", "resolve", "delete", "close")
_SUBJECT = "Workspace"


@dataclass(frozen=True, eq=False)
class Workspace:
    """The files an agent works with: `Agent(workspace=Workspace(LocalWorkspaces("work")))`.

    Each session has its own workspace, which is opened when a tool first needs it and deleted with the session.
    Sub-agents do not inherit it; a sub-agent that defines a workspace works in its own.

    Args:
        provider: Where workspaces come from, such as `LocalWorkspaces("work")` or `InMemoryWorkspaces()`.
        capabilities: What the model may do, out of what the provider supports. `"fs"` gives it the tools for files,
            `"shell"` adds `workspace_run`, and `"snapshot"` keeps the files at every step that changes them, so that a
            rewind restores them and a branch gets a copy.
        approve_commands: Whether a person has to approve each command, or a function of input and context that decides.
        command_effect: What it means to run a command again after a crash; see `tool(effect=…)`.
        command_seconds: The longest a command may take.
        most_file_bytes: The largest file that a tool reads or writes.
        most_shown: How many characters of a file, a listing or an output the model sees at once.

    Raises:
        DefinitionError: the workspace could not work; the message says why.
    """

    provider: WorkspaceProvider
    _: KW_ONLY
    capabilities: Sequence[WorkspaceCapability] = ("fs",)
    approve_commands: bool | ApprovalPredicate = True
    command_effect: Effect = "once"
    command_seconds: float = 120
    most_file_bytes: int = 1_000_000
    most_shown: int = 30_000

    def __post_init__(self) -> None:
        _check_provider(self.provider)
        given = cast("object", self.capabilities)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise DefinitionError(
                _SUBJECT, f'capabilities={given!r} is not a list of words; write capabilities=["fs"].'
            )
        for each in cast("Sequence[object]", given):
            check_choice(_SUBJECT, "capabilities", each, get_args(WorkspaceCapability))
        object.__setattr__(self, "capabilities", tuple(dict.fromkeys(self.capabilities)))
        if not {"fs", "shell"} & {*self.capabilities}:
            raise DefinitionError(
                _SUBJECT, 'it gives the model nothing to do; capabilities needs "fs", "shell" or both.'
            )
        if missing := [each for each in self.capabilities if each not in self.provider.capabilities]:
            can = ", ".join(sorted(self.provider.capabilities))
            raise DefinitionError(_SUBJECT, f"{self.provider!r} does not support {missing[0]!r}; it supports: {can}.")
        if not callable(self.approve_commands):
            check_switch(_SUBJECT, "approve_commands", self.approve_commands, other=", nor a function that decides")
        check_choice(_SUBJECT, "command_effect", self.command_effect, get_args(Effect))
        check_seconds(_SUBJECT, "command_seconds", self.command_seconds)
        check_whole(_SUBJECT, "most_file_bytes", self.most_file_bytes, 1)
        check_whole(_SUBJECT, "most_shown", self.most_shown, 100)
        # A tool that cannot be built is an error in the definition, so it has to surface now.
        _ = self.tools

    @property
    def keeps_snapshots(self) -> bool:
        """Whether the files are kept at every step that changes them."""
        return "snapshot" in self.capabilities

    @cached_property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools the model may call."""
        from helix_agents.agent.workspace_tools import workspace_tools

        return workspace_tools(self)


def check_workspace(workspace: object, subject: str) -> None:
    """Reject anything that is not a workspace.

    Raises:
        DefinitionError: says what to write instead.
    """
    if workspace is not None and not isinstance(workspace, Workspace):
        raise DefinitionError(subject, f"workspace={workspace!r} is not a Workspace(…).")


def _check_provider(provider: object) -> None:
    capable = getattr(provider, "capabilities", None)
    name = getattr(provider, "provider_id", None)
    if isclass(provider) or not isinstance(capable, frozenset) or not isinstance(name, str) or not name:
        raise DefinitionError(
            _SUBJECT, f"provider={provider!r} is not a provider of workspaces such as LocalWorkspaces(…)."
        )
    for each in _METHODS:
        method = getattr(provider, each, None)
        if not callable(method) or not is_async(method):
            raise DefinitionError(_SUBJECT, f"{provider!r} has no method async def {each}(…).")
