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
    "--model", metavar="NAME", help="A real model, such as anthropic:claude-sonnet-4-5; else one that follows a script."
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Leave the store and the order book here, to look at afterwards.",
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), hidden=True, help="Write the last view there.")
@json_option
@click.pass_obj
def command(
    output: Output, sure: bool, plain: bool, model: str | None, keep: Path | None, svg: Path | None
) -> ExitCode:
    """Watch an agent survive a kill -9; needs no key and no setup.

    A research desk works in a process of its own: an editor with three researchers side by side, who buy articles from
    a shop. The process gets SIGKILL in the middle of it. A second one goes on, a person is asked for an approval, a
    third one finishes. At the end everything is counted: orders in the shop's book, runs, messages, stream.
    """
    import asyncio
    from tempfile import TemporaryDirectory

    from helix_agents.cli.demo.director import Director
    from helix_agents.cli.demo.views import choose_view

    with TemporaryDirectory(prefix="helix-demo-") as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        view = choose_view(output, plain=plain, asks=not sure, svg=svg)
        return asyncio.run(Director(output, view, folder, model=model, kept=keep is not None).direct())
