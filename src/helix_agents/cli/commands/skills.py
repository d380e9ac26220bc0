"""`helix skills`: fetches skills that others publish into a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option
from helix_agents.cli.output import Output

if TYPE_CHECKING:
    from helix_agents.skills.syncing import EntryReport


@click.group()
def command() -> None:
    """Manage skills that come from elsewhere."""


@command.command()
@click.option(
    "--manifest",
    default="helix.skills.json",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file that names the skills; the lock is beside it.",
)
@click.option("--upgrade", is_flag=True, help="Ask every source which commit its branch or tag is at now.")
@click.option("--check", is_flag=True, help="Write nothing; show what has changed, with exit code 1 if anything has.")
@json_option
@click.pass_obj
def sync(output: Output, manifest: Path, upgrade: bool, check: bool) -> ExitCode:
    """Fetch the skills that a manifest names.

    The commit they come from is recorded in a lock. A skill is text that models obey: review what has changed, and
    commit the folder and the lock like code. Fetched skills stay as they are until the manifest changes or
    --upgrade is given. With --check, no source is contacted unless --upgrade is given too.
    """
    from helix_agents.skills.syncing import sync_skills

    reports: list[EntryReport] = []
    for report in sync_skills(manifest, check=check, upgrade=upgrade):
        reports.append(report)
        _say(output, report)
    output.answer({"entries": [_plain(report) for report in reports]})
    return ExitCode.FAILED if check and any(report.changes for report in reports) else ExitCode.OK


def _say(output: Output, report: "EntryReport") -> None:
    how = "written" if report.written else "not written" if report.changes else "unchanged"
    many = f"{len(report.skills)} skill{'' if len(report.skills) == 1 else 's'}"
    at = "" if report.commit is None else f" at {report.commit[:12]}"
    output.say(f"{report.entry}: {many}{at}, {how}: {report.folder}")
    for change in report.changes:
        output.say(f"  {change}")
    for place in report.unseen:
        output.say(f"  look closely: {place} has invisible characters")


def _plain(report: "EntryReport") -> dict[str, Any]:
    return {
        "entry": report.entry,
        "folder": str(report.folder),
        "commit": report.commit,
        "skills": list(report.skills),
        "sha256": report.sha256,
        "changed": bool(report.changes),
        "changes": list(report.changes),
        "written": report.written,
        "unseen": list(report.unseen),
    }
