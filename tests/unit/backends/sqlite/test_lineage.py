"""What is left in the file of histories that nobody sees any more."""

from pathlib import Path

from helix_agents.backends.sqlite import SQLiteStateStore
from helix_agents.testing.seams import CountingSeam
from tests.unit.backends.cut_sessions import check_cost_of_deleting, check_what_is_left


async def test_a_message_between_two_cuts_goes_with_the_session_that_saw_it(tmp_path: Path) -> None:
    store = await SQLiteStateStore.open(tmp_path / "helix.db")
    read = store.database.read
    await check_what_is_left(store, lambda table: read(lambda found: found.all(f"SELECT * FROM __agents_{table}")))
    await store.close()


async def test_deleting_costs_no_more_per_cut_however_many_there_are(tmp_path: Path) -> None:
    seam = CountingSeam()
    store = await SQLiteStateStore.open(tmp_path / "helix.db", seam=seam)
    await check_cost_of_deleting(store, seam)
    await store.close()
