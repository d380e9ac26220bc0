"""What an agent, a user and the janitor ask is looked up: nobody waits for the many other sessions in the store."""

import re
from collections.abc import Iterable
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from helix_agents.domain.records import encode
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.usage import used
from helix_agents.testing.scenes import SESSION
from helix_agents.testing.seams import CountingSeam
from tests.support.a_life import be_automated, be_briefed, end, live
from tests.unit.backends.sqlite.older_files import file_at

# What a plan goes through that is no table: rows that were found before, alone or through the view of usage.
NO_TABLE = re.compile(r"SCAN (counted|paged|below|entry|json_each|CONSTANT ROW|__agents_usage$|\(subquery)")
# Few whatever there is in the store, and looked at together.
FEW = (
    "INDEX __agents_runs_running (namespace=?)",
    "INDEX __agents_runs_untold (namespace=?)",
    "INDEX __agents_queued_turns_by_run (namespace=?)",
    "INDEX __agents_deliveries_due (namespace=?)",
    "__agents_leases USING PRIMARY KEY (namespace=?)",
    "__agents_entry_heads USING PRIMARY KEY (namespace=?)",
)


@pytest.mark.may_block("looks into the file")
async def test_nothing_in_a_sessions_life_goes_through_other_sessions(tmp_path: Path) -> None:
    file, seam = tmp_path / "helix.db", CountingSeam()
    async with await open_backend(f"sqlite:///{file}", seam=seam) as backend:
        seam.reset()
        await live(backend, SESSION)
        await end(backend, SESSION)
    assert len(seam.statements) > 100
    assert not gone_through_by(seam.statements, file)


@pytest.mark.may_block("looks into the file")
async def test_schedules_queues_and_webhooks_go_through_no_sessions_and_no_deliveries(tmp_path: Path) -> None:
    file, seam = tmp_path / "helix.db", CountingSeam()
    async with await open_backend(f"sqlite:///{file}", seam=seam) as backend:
        seam.reset()
        await be_automated(backend.state, SESSION)
    assert len(seam.statements) > 100
    assert not gone_through_by(seam.statements, file)


@pytest.mark.may_block("looks into the file")
async def test_a_briefing_and_the_end_of_old_backups_go_through_no_sessions(tmp_path: Path) -> None:
    file, seam = tmp_path / "helix.db", CountingSeam()
    async with await open_backend(f"sqlite:///{file}", seam=seam) as backend:
        assert backend.entries is not None
        await live(backend, SESSION)
        seam.reset()
        await be_briefed(backend.entries, tmp_path)
    assert len(seam.statements) > 20
    assert not gone_through_by(seam.statements, file)


def gone_through_by(statements: Iterable[str], file: Path) -> dict[str, list[str]]:
    """What each of these statements goes through in the file; those that look up what they need are left out."""
    connection = apsw.Connection(str(file))
    try:
        return {text: through for text in set(statements) if (through := gone_through(connection, text))}
    finally:
        connection.close()


def gone_through(connection: apsw.Connection, statement: str) -> list[str]:
    """The lines of a statement's plan that go through a table, or through all that a namespace has in it."""
    if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)", statement) is None:
        return []
    values = 0
    for number in re.findall(r"\?(\d*)", statement):
        values = max(values, int(number)) if number else values + 1
    plan = [str(row[-1]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", [0] * values)]
    scans = [line for line in plan if line.startswith("SCAN") and not NO_TABLE.match(line)]
    return [*scans, *(line for line in plan if line.endswith("(namespace=?)") and not line.endswith(FEW))]


@pytest.mark.may_block("makes a file by hand")
@pytest.mark.parametrize("version", [3, 4])
async def test_usage_outlives_the_changes_of_its_index(tmp_path: Path, version: int) -> None:
    file, entries = tmp_path / "helix.db", [used(n, recorded_at=n + 1) for n in range(3)]
    # Where the index had the root in it, an entry could be there once for each root that it was told with.
    twice = [replace(entry, root_session_id="elsewhere") for entry in entries] if version == 4 else []
    connection = file_at(file, version)
    for entry in (*entries, *twice):
        values = (
            entry.session_id,
            entry.root_session_id,
            entry.run_id,
            entry.n,
            entry.recorded_at,
            encode(entry).decode(),
        )
        connection.execute(
            "INSERT INTO __agents_usage (namespace, session_id, root_session_id, run_id, attempt, step, n, source_type,"
            " source_name, recorded_at, body) VALUES ('', ?, ?, ?, 1, 0, ?, 'tokens', 'model-1', ?, ?)",
            values,
        )
    connection.close()
    async with await open_backend(f"sqlite:///{file}") as backend:
        assert list((await backend.usage.query_usage()).items) == entries[::-1]
        assert await backend.usage.record_usage([*entries, used(3)]) == 1
        await backend.state.create_session(SESSION)
        await backend.state.delete_session(SESSION)
        assert (await backend.usage.query_usage()).total == 0


@pytest.mark.may_block("looks into the file")
async def test_a_call_is_found_at_its_owner_without_going_through_all_that_this_one_ever_asked(tmp_path: Path) -> None:
    file, seam = tmp_path / "helix.db", CountingSeam()
    async with await open_backend(f"sqlite:///{file}", seam=seam) as backend:
        await backend.state.create_session(SESSION)
        seam.reset()
        await backend.state.get_pending_call(SESSION, "call-1")
    connection = apsw.Connection(str(file))
    asked = [text for text in seam.statements if "__agents_pending_calls" in text]
    plans = [str(connection.execute(f"EXPLAIN QUERY PLAN {text}", (0, 0, 0)).fetchall()) for text in asked]
    connection.close()
    assert len(plans) == 2
    assert all("session_id=? AND tool_call_id=?" in plan for plan in plans), plans
