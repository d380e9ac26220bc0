"""What is left in the database of histories that nobody sees any more."""

import re

from helix_agents.backends.postgres import PostgresStateStore
from helix_agents.domain.sessions import CreateSession
from helix_agents.testing.scenes import said, start
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


async def test_a_family_is_deleted_with_as_many_statements_however_large_it_is(postgres_url: str) -> None:
    seam = CountingSeam()
    store = await PostgresStateStore.open(postgres_url, seam=seam)
    costs: list[int] = []
    for children in (3, 30):
        await start(store, f"root-{children}", f"run-{children}")
        for number in range(children):
            below = CreateSession(parent_session_id=f"root-{children}", root_session_id=f"root-{children}")
            await start(store, f"c-{children}-{number}", f"run-{children}-{number}", create=below)
            await store.append_messages(f"c-{children}-{number}", [said("a secret")])
        seam.reset()
        await store.delete_session(f"root-{children}")
        costs.append(seam.count)
    assert costs[0] == costs[1] < 20
    for table in ("sessions", "messages", "state_log", "segments", "checkpoints", "runs"):
        assert await store.database.read(lambda found, name=table: found.all(f"SELECT 1 FROM __agents_{name}")) == []
    await store.close()


async def test_a_page_walks_a_history_that_was_cut_often_as_far_as_it_reaches(postgres_url: str) -> None:
    seam = CountingSeam()
    store = await PostgresStateStore.open(postgres_url, seam=seam)
    await store.create_session("s")
    for count in range(1, 31):
        await store.append_messages("s", [said("kept"), said("cut off")])
        await store.truncate_messages("s", count)
    seam.reset()
    assert len(await store.get_messages("s", limit=3)) == 3
    (asked,) = seam.statements
    explained = f"EXPLAIN (ANALYZE, COSTS OFF) {asked}"
    plan = await store.database.read(lambda found: found.all(explained, (store.namespace, "s", 0, 3)))
    (walked,) = re.findall(r"Recursive Union .*rows=(\d+)", "\n".join(row[0] for row in plan))
    assert int(walked) <= 5
    assert len(await store.load_transcript("s")) == 30
    await store.close()
