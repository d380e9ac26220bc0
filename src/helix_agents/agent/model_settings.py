"""Settings of a model that could not work, found when they are given."""

from collections.abc import Sequence
from typing import Any

from helix_agents.agent.choices import check_choice
from helix_agents.domain.errors import DefinitionError
from helix_agents.ports.llm import ModelSettings

_CHOICES = ("auto", "required", "none")


def check_settings(subject: str, settings: Any) -> None:
    """Reject anything but settings.

    Raises:
        DefinitionError: they are not settings.
    """
    if not isinstance(settings, ModelSettings):
        raise DefinitionError(subject, f"settings={settings!r} is not a ModelSettings(…).")


def check_tool_choice(subject: str, choice: Any, names: Sequence[str]) -> None:
    """Reject a tool choice that no reply could follow.

    Raises:
        DefinitionError: it is no known choice and names no tool of the agent, or there is no tool to call.
    """
    check_choice(subject, "tool_choice", choice, (*_CHOICES, *names))
    if choice == "required" and not names:
        raise DefinitionError(
            subject, 'tool_choice="required" needs a tool to call; give the agent tools, or an output.'
        )


def check_settings_of_errand(subject: str, settings: Any) -> None:
    """Reject settings that a request of the library's own cannot use: it brings its own tools, or none.

    Raises:
        DefinitionError: they are not settings, or have a tool choice.
    """
    if settings is None:
        return
    check_settings(subject, settings)
    if settings.tool_choice is not None:
        raise DefinitionError(subject, "settings has a tool_choice, but the tools of this request are not yours.")
