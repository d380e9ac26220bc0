"""Sessions with a mark of the engine are found by an index, however many others there are."""

from pathlib import Path

import apsw
import pytest

from helix_agents.backends.sqlite import SQLiteStateStore
from helix_agents.backends.sqlite.sessions import _conditions
from helix_agents.domain.sessions import MARKS, SessionFilter


@pytest.mark.may_block("looks into the file")
@pytest.mark.parametrize("mark", MARKS)
async def test_a_marked_session_is_looked_up_and_not_searched_for(tmp_path: Path, mark: str) -> None:
    await (await SQLiteStateStore.open(tmp_path / "helix.db")).close()
    conditions, values = _conditions(SessionFilter(metadata={mark: "open"}, statuses=("failed", "completed")))
    connection = apsw.Connection(str(tmp_path / "helix.db"))
    try:
        rows = connection.execute(
            "EXPLAIN QUERY PLAN SELECT session_id FROM __agents_sessions WHERE namespace = ?"
            f"{conditions} ORDER BY created_at DESC, session_id DESC LIMIT 200",
            ("", *values),
        )
        (plan,) = [row[-1] for row in rows]
    finally:
        connection.close()
    assert plan.endswith("(namespace=? AND <expr>=?)"), plan
