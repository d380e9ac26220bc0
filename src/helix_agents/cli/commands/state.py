"""`helix state`: session, persistent and shared state, and what the capabilities rely on, for operators."""

import asyncio
from typing import Any

import click

from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.cli.capability_commands import command_for, show
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, state_options


@click.group()
def command() -> None:
    """Manage the state of agents."""


for _part in ("session", "persistent", "shared"):
    _group = click.Group(_part, help=f"The {_part} state.")
    for _capability in CATALOGUE.values():
        if _capability.name.startswith(f"state.{_part}."):
            _group.add_command(command_for(_capability))
    command.add_command(_group)

for _name, _shown in {
    "session.create": "create-session",
    "session.end": "end-session",
    "inbox.read": "inbox",
    "alerts.send": "alert",
    "alerts.list": "alerts",
    "system.health": "health",
    "policy.explain": "explain",
    "approvals.list": "approvals",
}.items():
    command.add_command(command_for(CATALOGUE[_name], _shown))


def _decision(name: str, approved: bool, text: str) -> None:
    @command.command(name, help=text)
    @click.argument("approval_id")
    @click.option("--reason", help="The reason.")
    @click.option("--by", default="operator", show_default=True, help="Who decides.")
    @state_options
    @click.pass_obj
    def decide(output: Output, approval_id: str, reason: str | None, by: str, **options: Any) -> None:
        show(output, asyncio.run(_decide(options, approval_id, approved, by, reason)))

    assert decide is not None


_decision("approve", True, "Approve a waiting call and run it: exactly as asked, once.")
_decision("reject", False, "Reject a waiting call.")


async def _decide(
    options: dict[str, Any], approval_id: str, approved: bool, by: str, reason: str | None
) -> dict[str, Any]:
    from helix_agents.capabilities.approvals import decide_approval

    async with operator(options) as state:
        row = await decide_approval(state.gateway, approval_id, approved=approved, by=by, reason=reason)
        return {"approval_id": approval_id, "status": row.status, "result": row.result}


@command.command("close-alert")
@click.argument("alert_ids", nargs=-1, required=True, metavar="ALERT_ID...")
@click.option("--by", default="operator", show_default=True, help="Who closes them.")
@state_options
@click.pass_obj
def close_alert(output: Output, alert_ids: tuple[str, ...], by: str, **options: Any) -> ExitCode:
    """Close alerts that were dealt with.

    An id that is no open alert is reported, and the others are still closed.
    """
    closed = asyncio.run(_close(options, alert_ids, by))
    missing = [alert_id for alert_id in dict.fromkeys(alert_ids) if alert_id not in closed]
    for alert_id in missing:
        output.note(f"There is no open alert {alert_id!r}; `helix state alerts` lists the open ones.")
    show(output, {"closed": closed, "missing": missing, "count": len(closed)})
    return ExitCode.FAILED if missing else ExitCode.OK


async def _close(options: dict[str, Any], alert_ids: tuple[str, ...], by: str) -> list[str]:
    from helix_agents.capabilities.alerts import close_alerts

    async with operator(options) as state:
        return await close_alerts(state.gateway, alert_ids, by=by)


@command.command()
@state_options
@click.pass_obj
def sweep(output: Output, **options: Any) -> None:
    """End idle sessions, and do what was left undone.

    Notices are delivered, approved calls are run, and old changes are dropped. Executors whose agents have state
    capabilities do all of this themselves, and so does `helix mcp`. Those executors set how old is too old; if
    there have been none for a week, the defaults apply.
    """
    show(output, asyncio.run(_sweep(options)))


async def _sweep(options: dict[str, Any]) -> dict[str, Any]:
    from helix_agents.capabilities.housekeeping import sweep_as_guest

    async with operator(options) as state:
        return await sweep_as_guest(state.gateway)
