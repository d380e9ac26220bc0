"""What usage leaves in the file."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from helix_agents.backends.sqlite import open_backend
from helix_agents.domain.usage import ENTRIES_PER_ROUND, UsageEntry, UsageFilter
from helix_agents.testing.contracts.usage import spent, used
from helix_agents.testing.scenes import SESSION, commit, start
from helix_agents.testing.seams import CountingSeam

pytestmark = pytest.mark.may_block("looks into the file")


def rows(path: Path) -> tuple[Any, ...]:
    """How many checkpoints say what their step used, and how many entries are rows of their own."""
    connection = apsw.Connection(str(path))
    try:
        (counts,) = connection.execute(
            "SELECT (SELECT count(used) FROM __agents_checkpoints), (SELECT count(*) FROM __agents_usage_entries)"
        )
    finally:
        connection.close()
    return counts


async def test_what_a_step_used_stands_in_its_checkpoint_and_goes_with_its_session(tmp_path: Path) -> None:
    async with await open_backend(f"sqlite:///{tmp_path}/helix.db") as backend:
        await start(backend.state)
        for step in (1, 2):
            await commit(backend.state, step, usage=(spent(0, step), spent(1, step, source_type="tool")))
        assert rows(tmp_path / "helix.db") == (2, 0)
        await backend.state.delete_session(SESSION)
        assert rows(tmp_path / "helix.db") == (0, 0)


@pytest.mark.parametrize(
    "entry",
    [
        spent(1),
        spent(step=2),
        spent(session_id="other"),
        spent(root_session_id="other"),
        spent(run_id="r-9"),
        spent(attempt=2),
        spent(agent_type="other"),
        spent(user_id="ann"),
        spent(recorded_at=7),
        spent(metadata={"deep": 1}),
    ],
    ids=lambda entry: next(iter(set_apart(entry)), ""),
)
async def test_what_a_step_counts_for_others_or_in_words_is_a_row_of_its_own(tmp_path: Path, entry: UsageEntry) -> None:
    async with await open_backend(f"sqlite:///{tmp_path}/helix.db") as backend:
        await start(backend.state)
        await commit(backend.state, usage=(entry,))
        assert rows(tmp_path / "helix.db") == (0, 1)


def set_apart(entry: UsageEntry) -> list[str]:
    return [name for name in entry.__struct_fields__ if getattr(entry, name) != getattr(spent(), name)]


async def test_a_later_round_of_a_step_counts_beside_the_first(tmp_path: Path) -> None:
    async with await open_backend(f"sqlite:///{tmp_path}/helix.db") as backend:
        await start(backend.state)
        await commit(backend.state, usage=(spent(),))
        await commit(backend.state, round=1, usage=(spent(ENTRIES_PER_ROUND), spent(ENTRIES_PER_ROUND + 1)))
        assert rows(tmp_path / "helix.db") == (2, 0)
        await commit(backend.state, round=2, usage=(spent(),))
        found = (await backend.usage.query_usage(UsageFilter(session_id=SESSION))).items
        assert sorted(entry.n for entry in found) == [0, ENTRIES_PER_ROUND, ENTRIES_PER_ROUND + 1]


async def test_no_step_looks_at_what_was_used_before_it(tmp_path: Path) -> None:
    seam = CountingSeam()
    async with await open_backend(f"sqlite:///{tmp_path}/helix.db", seam=seam) as backend:
        await start(backend.state)
        seam.reset()
        for number, usage in enumerate(((spent(0, 1),), (spent(0, 2, metadata={"in": "words"}),)), 1):
            await commit(backend.state, number, usage=usage)
        about_usage = [text for text in seam.statements if "usage" in text or ("SELECT" in text and "used" in text)]
        assert [text.split()[0] for text in about_usage] == ["INSERT"]


async def test_an_entry_is_found_by_its_session_whatever_root_it_names(tmp_path: Path) -> None:
    async with await open_backend(f"sqlite:///{tmp_path}/helix.db") as backend:
        await backend.state.create_session(SESSION)
        await backend.usage.record_usage([used(root_session_id="elsewhere")])
        assert (await backend.usage.query_usage(UsageFilter(session_id=SESSION))).total == 1
        assert await backend.usage.delete_usage(SESSION) == 1
