"""What is left in the database of histories that nobody sees any more."""

from helix_agents.backends.postgres import PostgresStateStore
from tests.unit.backends.two_cuts import check_what_is_left


async def test_a_message_between_two_cuts_goes_with_the_session_that_saw_it(postgres_url: str) -> None:
    store = await PostgresStateStore.open(postgres_url)
    read = store.database.read
    await check_what_is_left(store, lambda table: read(lambda found: found.all(f"SELECT * FROM __agents_{table}")))
    await store.close()
