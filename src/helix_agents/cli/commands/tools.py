"""`helix tools`: takes catalogues of the tools that MCP servers offer."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option
from helix_agents.cli.output import Output

if TYPE_CHECKING:
    from helix_agents.mcp_tools.server import MCPToolServer


@click.group()
def command() -> None:
    """Manage tools that MCP servers run."""


@command.command()
@click.argument("module", metavar="MODULE")
@click.option("--server", "names", multiple=True, metavar="NAME", help="Only this server; may be repeated.")
@click.option("--check", is_flag=True, help="Write nothing; show what has changed, with exit code 1 if anything has.")
@json_option
@click.pass_obj
def sync(output: Output, module: str, names: tuple[str, ...], check: bool) -> ExitCode:
    """Write the catalogues of the MCP servers in MODULE.

    Each server is asked what it offers. MODULE is a module or a file, as for the commands that run agents. A
    catalogue is a file beside it, from which agents get their tools: review what has changed, and commit it like
    code.
    """
    taken = asyncio.run(_sync(output, _servers_in(module, names), check))
    output.answer({"servers": taken})
    return ExitCode.FAILED if check and any(each["changed"] for each in taken) else ExitCode.OK


def _servers_in(place: str, names: tuple[str, ...]) -> "list[MCPToolServer]":
    from helix_agents.cli.agent_modules import AgentsNotFoundError, import_place
    from helix_agents.domain.errors import DefinitionError
    from helix_agents.mcp_tools.server import collecting

    with collecting() as servers:
        try:
            import_place(place, place.partition(":")[0])
        except AgentsNotFoundError:
            # Code after the servers' definitions may need the very tools that are to be fetched.
            if not servers:
                raise
    unknown = sorted({*names} - {server.name for server in servers})
    chosen = [server for server in servers if not names or server.name in names]
    if not chosen or unknown:
        has = ", ".join(sorted({server.name for server in servers}))
        found = f"it defines these MCP servers: {has}." if has else "it defines no MCP server; write MCPToolServer(…)."
        raise DefinitionError(f"{place!r}", found)
    for at, server in enumerate(chosen):
        if any(server.catalogue == other.catalogue for other in chosen[:at]):
            raise DefinitionError(
                f"MCP server {server.name!r}",
                f"another server has the same catalogue {server.catalogue}; rename one, or give it catalogue=….",
            )
    return chosen


async def _sync(output: Output, servers: "list[MCPToolServer]", check: bool) -> list[dict[str, Any]]:
    from helix_agents.mcp_tools.catalogue import Catalogue, read_catalogue, write_catalogue
    from helix_agents.mcp_tools.tools import asks_first, effect_of, tool_name

    taken: list[dict[str, Any]] = []
    for server in servers:
        known = read_catalogue(f"MCP server {server.name!r}", server.catalogue)
        try:
            offered = await server.take_catalogue()
        finally:
            await server.close()
        changes = (known or Catalogue(tools=())).changes_to(offered)
        is_new = known is None or bool(changes)
        if is_new and not check:
            write_catalogue(offered, server.catalogue)
        how = "unchanged" if not is_new else "not written" if check else "written"
        many = f"{len(offered.tools)} tool{'' if len(offered.tools) == 1 else 's'}"
        output.say(f"{server.name}: {many}, {how}: {server.catalogue}")
        for change in changes:
            output.say(f"  {change}")
        if is_new and not check:
            asked = {True: "required", False: "not required"}
            rows = [
                (tool_name(server.name, each.name), effect_of(each), asked[asks_first(each)]) for each in offered.tools
            ]
            output.table(("tool", "effect", "approval"), rows)
        taken.append(
            {
                "server": server.name,
                "catalogue": str(server.catalogue),
                "tools": [each.name for each in offered.tools],
                "changed": is_new,
                "changes": changes,
                "written": is_new and not check,
            }
        )
    return taken
