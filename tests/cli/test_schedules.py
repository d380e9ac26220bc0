"""`helix schedules`: set, looked at and changed from a shell, followed by whichever command knows the agent."""

from pathlib import Path

import pytest

from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import helix

PAST = "2026-01-01T09:00:00+01:00"


def test_a_schedule_is_set_listed_shown_paused_resumed_and_deleted(office: Path) -> None:
    said = helix(office, "schedules", "set", "brief", "clerk", "Write the brief", "--cron", "0 7 * * 1-5",
                 "--timezone", "Europe/Berlin", "--user", "ann", "--tag", "daily")  # fmt: skip
    assert said.code == ExitCode.OK, said.err
    assert said.out.startswith("brief: 0 7 * * 1-5 Europe/Berlin; next 2")
    [heading, row] = helix(office, "schedules", "list").out.splitlines()
    assert heading.split() == ["SCHEDULE", "AGENT", "WHEN", "NEXT", "TIMES"]
    assert row.startswith("brief     clerk")
    shown = helix(office, "schedules", "show", "brief")
    assert "says       Write the brief" in shown.out
    assert helix(office, "schedules", "pause", "brief").out == "brief: 0 7 * * 1-5 Europe/Berlin; next paused.\n"
    document = helix(office, "schedules", "resume", "brief", "--json").json["schedule"]
    assert (document["paused"], document["user_id"], document["tags"]) == (False, "ann", ["daily"])
    assert document["next_at"] is not None
    assert helix(office, "schedules", "delete", "brief").code == ExitCode.OK
    assert helix(office, "schedules", "delete", "brief", "--json").code == ExitCode.FAILED
    gone = helix(office, "schedules", "show", "brief")
    assert (gone.code, gone.err) == (
        ExitCode.FAILED,
        "Error: There is no schedule 'brief'; it may have been deleted.\n",
    )


def test_what_is_due_is_started_by_the_janitor_that_knows_the_agent(office: Path) -> None:
    said = helix(office, "schedules", "set", "once", "clerk", "Write to Ann", "--at", PAST, "--session", "planned")
    assert said.out == "once: at 2026-01-01 08:00:00; next 2026-01-01 08:00:00.\n"
    assert "scheduled" not in helix(office, "janitor").out
    assert "scheduled: 1" in helix(office, "janitor", "agents:clerk").out
    assert "next       over" in helix(office, "schedules", "show", "once").out
    assert "user: Write to Ann" in helix(office, "sessions", "messages", "planned").out


@pytest.mark.parametrize(
    ("every", "shown"),
    [("90s", "90 s"), ("1s", "1 s"), ("1.5s", "1.5 s"), ("90m", "90 min"), ("36h", "36 h"), ("48h", "2 d")],
)
def test_an_interval_is_shown_as_it_is(office: Path, every: str, shown: str) -> None:
    said = helix(office, "schedules", "set", "often", "clerk", "Hello", "--every", every)
    assert said.out.startswith(f"often: every {shown}; next ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--every", "99999999999d"], "its interval is not between a second and ten years"),
        (["--at", "9999-12-31T23:59:59-23:59"], "its time is not between the years 1970 and 3000"),
        ([], "Say when it is due: --at, --every or --cron."),
        (["--every", "1h", "--cron", "0 7 * * *"], "--every and --cron exclude each other"),
        (["--every", "soon"], "'soon' is not a length of time; say 90s, 15m, 2h or 1d."),
        (["--at", "2027-01-01T09:00"], "is not a time; say 2027-01-31T09:00+01:00"),
        (["--cron", "every day"], "'every day' is not a cron expression"),
    ],
)
def test_a_schedule_that_cannot_be_is_told_in_a_sentence(office: Path, options: list[str], says: str) -> None:
    refused = helix(office, "schedules", "set", "odd", "clerk", "Hello", *options)
    assert refused.code != ExitCode.OK
    assert says in refused.err
    assert "Traceback" not in refused.err
    assert helix(office, "schedules", "list").out == "None.\n"
