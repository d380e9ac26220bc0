"""`helix demo`: an agent at work, its process killed in the middle of a step, and nothing lost or done twice."""

from pathlib import Path

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option
from helix_agents.cli.output import Output


@click.command()
@click.option("--yes", "-y", "sure", is_flag=True, help="Approve without asking.")
@click.option("--plain", is_flag=True, help="Print lines instead of a live view, as without a terminal.")
@click.option(
    "--model",
    metavar="NAME",
    help="Use this model, such as anthropic:claude-sonnet-4-5, not the one whose API key is set.",
)
@click.option("--scripted", is_flag=True, help="Use a scripted model, even if an API key is set.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep the store and the order book here, replacing those of an earlier demo.",
)
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), hidden=True, help="Write the last view to this file."
)
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
    """Watch an agent survive a kill -9; no API key or setup needed.

    A research desk runs in its own process: an editor, and three researchers who work in parallel and buy articles from
    a shop. The process gets SIGKILL in the middle of its work. A second process takes over, you are asked for an
    approval, and a third process finishes. Then everything is counted: orders in the shop's book, runs, messages,
    stream.

    The agents use a real model if its API key is in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY,
    GOOGLE_API_KEY), otherwise a scripted one. The demo has its own store file and does not touch HELIX_STORE.
    """
    import asyncio
    from tempfile import TemporaryDirectory

    from helix_agents.cli.commands.demo.casting import choose_model
    from helix_agents.cli.commands.demo.director import Director
    from helix_agents.cli.commands.demo.views import choose_view

    if model is not None and scripted:
        raise click.UsageError("--model and --scripted exclude each other; give only one of them.")
    cast = choose_model(model, scripted=scripted)
    with TemporaryDirectory(prefix="helix-demo-") as temporary:
        folder = keep or Path(temporary)
        clear(folder)
        view = choose_view(output, plain=plain, asks=not sure, svg=svg)
        return asyncio.run(Director(output, view, folder, cast=cast, kept=keep is not None).direct())


def clear(folder: Path) -> None:
    """Create the folder, and remove what an earlier demonstration left in it."""
    from helix_agents.cli.commands.demo.director import STORE_FILE
    from helix_agents.cli.commands.demo.shop import Shop

    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob(f"{STORE_FILE}*"):
        file.unlink()
    Shop(folder).clear()
