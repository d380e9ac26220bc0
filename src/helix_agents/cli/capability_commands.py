"""Commands made from declarations: one per capability, its inputs as options, its answer as JSON or as lines."""

import asyncio
import json
from typing import Any

import click

from helix_agents.capabilities.declaring import Capability, Field
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, state_options

OWN_OPTIONS = (
    "store_url",
    "namespace",
    "acting",
    "session_id",
    "directory",
    "vault_path",
    "export_roots",
)


def command_for(capability: Capability, name: str | None = None) -> click.Command:
    """The command of one capability."""

    @click.pass_obj
    def run(output: Output, **given: Any) -> None:
        options = {option: given.pop(option) for option in OWN_OPTIONS}
        if options["session_id"] is None and _needs_session(capability):
            raise click.UsageError("Name a session with --session ID; `helix state create-session` creates one.")
        inputs = {name.removeprefix("input_"): value for name, value in given.items() if value is not None}
        for declared in capability.inputs:
            if declared.kind in ("Object", "Array") and declared.name in inputs:
                inputs[declared.name] = _json(declared, inputs[declared.name])
        show(output, asyncio.run(_call(options, capability, inputs)))

    for declared in reversed(capability.inputs):
        run = _option(declared)(run)
    run = state_options(run)
    help_text = f"{capability.purpose}\n\n{capability.when_to_use}"
    return click.command(name or capability.name.rpartition(".")[2], help=help_text)(run)


def show(output: Output, answer: dict[str, Any]) -> None:
    """Show an answer, one field per line for a person, or as JSON for a script."""
    output.answer(answer)
    for name, value in answer.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
        # Stored text is escaped: a terminal must not interpret what others wrote.
        output.say(f"{name}: {_harmless(text)}")


def _needs_session(capability: Capability) -> bool:
    """Whether it needs a session; a watch without one belongs to the agent."""
    return capability.in_session and capability.name != "state.shared.watch"


async def _call(options: dict[str, Any], capability: Capability, inputs: dict[str, Any]) -> dict[str, Any]:
    async with operator(options, creates=not capability.reads_only) as state:
        return await state.call(capability.name, **inputs)


def _option(declared: Field) -> Any:
    types: dict[str, Any] = {"Integer": int, "Number": float}
    kind = click.Choice(declared.choices) if declared.choices else types.get(declared.kind, str)
    json_help = " As JSON." if declared.kind in ("Object", "Array") else ""
    flag = f"--{declared.name.replace('_', '-')}"
    if declared.name == "agent":
        # --agent already says whose state it is; this option names the agent to back up or restore.
        flag = "--of-agent"
    name, text = f"input_{declared.name}", declared.description + json_help
    if declared.kind == "Boolean":
        return click.option(flag, name, is_flag=True, default=None, help=text)
    return click.option(flag, name, type=kind, required=declared.required, help=text)


def _json(declared: Field, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as problem:
        raise click.BadParameter(f"--{declared.name} is nested too deeply.") from problem
    except ValueError as problem:
        raise click.BadParameter(
            f"--{declared.name} takes JSON: write text as '\"text\"', not {text[:40]!r}."
        ) from problem


def _harmless(text: str) -> str:
    return "".join(letter if letter == "\n" or letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
