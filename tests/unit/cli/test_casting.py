"""Which model the demonstration asks, and how a suggested command is written, for every way to start it."""

import pytest

from helix_agents.cli import typed as typing_module
from helix_agents.cli.commands.demo.casting import REAL_MODELS, choose_model
from helix_agents.cli.typed import typed
from helix_agents.domain.errors import UnknownModelError
from helix_agents.llm import pydantic_ai as providers


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in REAL_MODELS:
        monkeypatch.delenv(variable, raising=False)


def test_without_a_key_a_script_is_followed() -> None:
    assert choose_model(None, scripted=False).model is None


@pytest.mark.parametrize(("variable", "model"), REAL_MODELS.items())
def test_the_first_key_that_is_set_says_which_model(variable: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "a-key")
    chosen = choose_model(None, scripted=False)
    assert (chosen.model, chosen.why) == (model, f"model: {model} ({variable} is set)")
    assert choose_model(None, scripted=True).model is None
    assert choose_model("openai:gpt-5", scripted=False).model == "openai:gpt-5"


def test_a_key_without_its_extra_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    monkeypatch.setattr(providers, "find_spec", lambda module: None)
    chosen = choose_model(None, scripted=False)
    assert (chosen.model, chosen.why) == (
        None,
        "model: a scripted one; for a real one: pip install 'helix-agents[anthropic]'",
    )


def test_a_model_that_is_named_has_to_be_there() -> None:
    with pytest.raises(UnknownModelError):
        choose_model("teapot:brew", scripted=False)


def test_a_suggestion_can_be_typed_where_the_command_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    assert typed("helix", "run", "a b") == "helix run 'a b'"
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert typed("helix", "doctor") == "uv run helix doctor"
    monkeypatch.setattr(typing_module, "find_spec", lambda module: None)
    assert typed("helix", "doctor") == "uv run --no-dev helix doctor"
