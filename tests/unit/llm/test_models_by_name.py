"""A model is found by its name: the prefix says who opens it, and a missing part says how to get it."""

import importlib.util
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from helix_agents.domain.errors import MissingExtraError, UnknownModelError
from helix_agents.llm import pydantic_ai as providers
from helix_agents.llm.scripted import ScriptedModel
from helix_agents.ports import models
from helix_agents.ports.models import ENTRY_POINTS, open_model
from tests.support.asking import answer_of, question


@pytest.mark.parametrize("name", ["anthropic:claude-sonnet-5", "openai:gpt-5", "openai-chat:gpt-4o", "google:gemini"])
def test_the_providers_that_come_with_the_library_are_found(name: str) -> None:
    assert open_model(name).name == name


def test_an_unknown_prefix_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownModelError) as caught:
        open_model("antropic:claude")
    said = str(caught.value)
    assert said.startswith("No provider is installed for 'antropic' models; known prefixes: alibaba:, anthropic:, ")
    assert said.endswith("zai:. Did you mean 'anthropic:claude'?")


@pytest.mark.parametrize("name", ["gpt-5", "", "anthropic:", ":gpt-5"])
def test_a_name_without_prefix_or_model_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        open_model(name)
    assert "known prefixes: alibaba:, anthropic:" in str(caught.value).replace("Known", "known")


def test_a_name_without_a_prefix_is_told_how_to_write_it() -> None:
    for name, whole in (("gpt-5", "openai:gpt-5"), ("gemini-2.5", "google:gemini-2.5"), ("claude", "anthropic:claude")):
        with pytest.raises(UnknownModelError, match=f"write '{whole}'"):
            open_model(name)


def open_house_model(name: str, **options: Any) -> ScriptedModel:
    return ScriptedModel([f"{name} {options}"], name=name)


async def test_a_third_party_gets_a_prefix_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    house = EntryPoint(name="house", group=ENTRY_POINTS, value=f"{__name__}:open_house_model")
    monkeypatch.setattr(models, "entry_points", lambda **wanted: EntryPoints([house]).select(**wanted))
    model = open_model("house:red", region="north")
    assert (await answer_of(model, question())).reply.text == "house:red {'region': 'north'}"


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("anthropic:claude", "anthropic", "anthropic"),
        ("openai:gpt", "openai", "openai"),
        ("openai-chat:gpt", "openai", "openai"),
        ("google:gemini", "google.genai", "google"),
        ("anthropic:claude", "pydantic_ai", "anthropic"),
    ],
)
def test_a_missing_extra_is_named_when_the_model_is_opened(
    name: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(module: str) -> Any:
        if module == "google.genai" == missing:
            raise ModuleNotFoundError("No module named 'google'")
        return None if module == missing else importlib.util.find_spec(module)

    monkeypatch.setattr(providers, "find_spec", find)
    with pytest.raises(MissingExtraError, match=rf"pip install 'helix-agents\[{extra}\]'"):
        open_model(name)


def test_opening_a_model_loads_none_of_the_providers_libraries() -> None:
    code = (
        "import sys\n"
        "from helix_agents.ports.models import open_model\n"
        "open_model('anthropic:claude'); open_model('openai:gpt')\n"
        "print(*sorted({'pydantic_ai', 'anthropic', 'openai', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
