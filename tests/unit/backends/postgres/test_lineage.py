"""What is left in the database of histories that nobody sees any more."""

from helix_agents.backends.postgres import PostgresStateStore
from helix_agents.testing.seams import CountingSeam
from tests.unit.backends.cut_sessions import check_cost_of_deleting, check_what_is_left


async def test_a_message_between_two_cuts_goes_with_the_session_that_saw_it(postgres_url: str) -> None:
    store = await PostgresStateStore.open(postgres_url)
    read = store.database.read
    await check_what_is_left(store, lambda table: read(lambda found: found.all(f"SELECT * FROM __agents_{table}")))
    await store.close()


async def test_deleting_costs_no_more_per_cut_however_many_there_are(postgres_url: str) -> None:
    seam = CountingSeam()
    store = await PostgresStateStore.open(postgres_url, seam=seam)
    await check_cost_of_deleting(store, seam)
    await store.close()
