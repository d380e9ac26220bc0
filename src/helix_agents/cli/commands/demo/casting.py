"""Which model the demo's agents use: a real one if an API key is set, otherwise a scripted one."""

import os

from helix_agents.domain.errors import MissingExtraError
from helix_agents.domain.records import Record
from helix_agents.ports.models import open_model

# In this order: the variable that a provider's own client reads, and the model that its owner probably has.
REAL_MODELS = {
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5",
    "OPENAI_API_KEY": "openai:gpt-5-mini",
    "GOOGLE_API_KEY": "google:gemini-2.5-flash",
    "GEMINI_API_KEY": "google:gemini-2.5-flash",
}


class Cast(Record):
    """The model by its name, None for the script; and the reason for the choice."""

    model: str | None
    why: str


def choose_model(named: str | None, *, scripted: bool) -> Cast:
    """The model that was asked for, or the one whose key is in the environment, or the script.

    Raises:
        UnknownModelError, MissingExtraError: the model that was asked for cannot be used here.
    """
    if named is not None:
        open_model(named)
        return Cast(model=named, why=f"model: {named}")
    variable = next((name for name in REAL_MODELS if os.environ.get(name)), None)
    if scripted or variable is None:
        return Cast(model=None, why="model: a scripted one, so no API key is needed")
    model = REAL_MODELS[variable]
    try:
        open_model(model)
    except MissingExtraError as missing:
        extra = f"pip install 'helix-agents[{missing.extra}]'"
        return Cast(model=None, why=f"model: a scripted one; for a real one: {extra}")
    return Cast(model=model, why=f"model: {model} ({variable} is set)")
