"""`helix audit`: whether the audit log is as it was written, and checkpoints that prove it later."""

import asyncio
from typing import Any

import click

from helix_agents.cli.capability_commands import show
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, state_options


@click.group()
def command() -> None:
    """Check the audit log."""


@command.command()
@state_options
@click.pass_obj
def verify(output: Output, **options: Any) -> int:
    """Find rows that were edited, deleted or moved.

    A cut-off end is found as well. The first bad row is named.
    """
    answer = asyncio.run(_audit(options, "verify"))
    show(output, answer)
    return ExitCode.OK if answer["intact"] else ExitCode.FAILED


@command.command()
@state_options
@click.pass_obj
def checkpoint(output: Output, **options: Any) -> None:
    """Sign the current end of the log.

    Keep the file of checkpoints where the store's owner cannot change it.
    """
    show(output, asyncio.run(_audit(options, "checkpoint")))


async def _audit(options: dict[str, Any], what: str) -> dict[str, Any]:
    from helix_agents.capabilities.auditing import sign_checkpoint, verify_audit

    async with operator(options, creates=what != "verify") as state:
        return await (verify_audit(state.gateway) if what == "verify" else sign_checkpoint(state.gateway))
