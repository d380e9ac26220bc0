"""Results and outputs with images at a terminal: named, and whole only where a script asks for them."""

from pathlib import Path

from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import helix

AGENTS = '''
from helix_agents import Agent, File, Image, ScriptedModel, tool
from helix_agents.testing import call

MOON = Image.of(b"moon" * 100, "image/png", "moon.png")

@tool
async def look() -> list[str | Image]:
    """Look at the sky."""
    return ["The moon:", MOON]

@tool(finish_with=True)
async def draw() -> Image:
    """Draw the moon."""
    return MOON

eye = Agent(name="eye", model=ScriptedModel([call("look"), "Seen."]), tools=[look])
painter = Agent(name="painter", model=ScriptedModel([call("draw")]), tools=[draw], output=Image)
'''
NAMED = "[image: moon.png, image/png, about 402 bytes]"


def test_a_result_with_an_image_is_named_while_it_runs_and_afterwards(folder: Path) -> None:
    (folder / "sights.py").write_text(AGENTS)
    done = helix(folder, "run", "sights:eye", "Look", "--session", "s-1")
    assert (done.code, done.out) == (ExitCode.OK, "Seen.\n")
    assert f"look → The moon: {NAMED}" in done.err
    listed = helix(folder, "sessions", "messages", "s-1")
    assert f"look answers: The moon:\n{NAMED}" in listed.out
    assert "base64" not in done.err + listed.out
    whole = helix(folder, "sessions", "messages", "s-1", "--json").json["items"][2]["message"]
    assert whole["in_parts"]
    assert whole["content"][1]["url"].startswith("data:image/png;base64,")


def test_an_image_as_output_is_named_and_whole_for_a_script(folder: Path) -> None:
    (folder / "sights.py").write_text(AGENTS)
    done = helix(folder, "run", "sights:painter", "Draw", "--session", "s-1")
    assert (done.code, done.out) == (ExitCode.OK, f"{NAMED}\n")
    shown = helix(folder, "sessions", "show", "s-1").out
    assert NAMED in shown
    assert "base64" not in shown
    scripted = helix(folder, "run", "sights:painter", "Draw", "--session", "s-2", "--json").json
    assert scripted["output"]["url"].startswith("data:image/png;base64,")
