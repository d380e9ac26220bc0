"""`helix demo`: a process is killed in the middle of a conversation, and nothing it was promised is lost."""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option
from helix_agents.cli.output import Output

SESSION_ID = "demo"
ACKNOWLEDGED_BEFORE_THE_KILL = 5


@click.command()
@json_option
@click.pass_obj
def command(output: Output) -> ExitCode:
    """Kill a process in mid-conversation and lose nothing."""
    with TemporaryDirectory(prefix="helix-demo-") as folder:
        return asyncio.run(demonstrate(output, f"sqlite:///{Path(folder) / 'demo.db'}"))


async def demonstrate(output: Output, url: str) -> ExitCode:
    """Run the demonstration on one store and report whether it held."""
    from helix_agents.domain.ids import SessionId
    from helix_agents.ports.backend import open_backend

    output.say("A first process holds a conversation and reports each message it has stored:")
    acknowledged = await write_until_killed(output, url)
    output.say("  … and is killed without warning.")
    output.say("A second process opens the same store:")
    async with await open_backend(url) as backend:
        transcript = await backend.state.load_transcript(SessionId(SESSION_ID))
    held = len(transcript) >= acknowledged
    output.say(f"  {len(transcript)} messages are there; {acknowledged} had been reported.")
    output.say("Nothing was lost." if held else "Something was lost, and that is a bug.")
    output.answer({"acknowledged": acknowledged, "found": len(transcript), "held": held})
    return ExitCode.OK if held else ExitCode.FAILED


async def write_until_killed(output: Output, url: str) -> int:
    """Let another process write, kill it after a few reports, and answer how many it got out."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "helix_agents.cli.demo_writer", url, SESSION_ID, stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    acknowledged = 0
    while acknowledged < ACKNOWLEDGED_BEFORE_THE_KILL and (report := await writer.stdout.readline()):
        acknowledged = int(report)
        output.say(f"  message {acknowledged} is stored")
    if writer.returncode is None:
        writer.kill()
    # Reports that were on their way when the process died count too: each was made after its commit.
    unread, _ = await writer.communicate()
    return max([acknowledged, *map(int, unread.split())])
