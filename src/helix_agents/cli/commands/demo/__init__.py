"""`helix demo`: an agent at work, its process killed in the middle of a step, and nothing lost or done twice."""

from pathlib import Path

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option
from helix_agents.cli.output import Output


@click.command()
@click.option("--yes", "-y", "sure", is_flag=True, help="Approve without asking.")
@click.option("--plain", is_flag=True, help="Lines instead of a live view, as where there is no terminal.")
@click.option(
    "--model",
    metavar="NAME",
    help="Ask this model, such as anthropic:claude-sonnet-4-5, not the one whose key is set.",
)
@click.option("--scripted", is_flag=True, help="Ask a model that follows a script, whatever key is set.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Leave the store and the order book here, in place of those of an earlier demonstration.",
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), hidden=True, help="Write the last view there.")
@json_option
@click.pass_obj
def command(
    output: Output,
    sure: bool,
    plain: bool,
    model: str | None,
    scripted: bool,
    keep: Path | None,
    svg: Path | None,
) -> ExitCode:
    """Watch an agent survive a kill -9; needs no key and no setup.

    A research desk works in a process of its own: an editor with three researchers side by side, who buy articles from
    a shop. The process gets SIGKILL in the middle of it. A second one goes on, a person is asked for an approval, a
    third one finishes. At the end everything is counted: orders in the shop's book, runs, messages, stream.

    The agents ask a real model where the key of one is in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY,
    GOOGLE_API_KEY), else one that follows a script. The store is a file of its own; HELIX_STORE is left alone.
    """
    import asyncio
    from tempfile import TemporaryDirectory

    from helix_agents.cli.commands.demo.casting import choose_model
    from helix_agents.cli.commands.demo.director import Director
    from helix_agents.cli.commands.demo.views import choose_view

    if model is not None and scripted:
        raise click.UsageError("--model names a real model and --scripted wants none; give one of them.")
    cast = choose_model(model, scripted=scripted)
    with TemporaryDirectory(prefix="helix-demo-") as temporary:
        folder = keep or Path(temporary)
        clear(folder)
        view = choose_view(output, plain=plain, asks=not sure, svg=svg)
        return asyncio.run(Director(output, view, folder, cast=cast, kept=keep is not None).direct())


def clear(folder: Path) -> None:
    """Make the folder, and remove what an earlier demonstration left in it."""
    from helix_agents.cli.commands.demo.director import STORE_FILE
    from helix_agents.cli.commands.demo.shop import Shop

    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob(f"{STORE_FILE}*"):
        file.unlink()
    Shop(folder).clear()
