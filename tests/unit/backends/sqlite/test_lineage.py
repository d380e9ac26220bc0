"""What is left in the file of histories that nobody sees any more."""

from pathlib import Path

from helix_agents.backends.sqlite import SQLiteStateStore
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.sessions import BranchPoint
from helix_agents.domain.writes import Replace, StepWrites


async def test_a_message_between_two_cuts_goes_with_the_session_that_saw_it(tmp_path: Path) -> None:
    store = await SQLiteStateStore.open(tmp_path / "helix.db")
    await store.create_session("source")
    await store.append_messages("source", [UserMessage(content=text) for text in ("one", "two", "secret", "four")])
    await store.truncate_messages("source", 3)
    await store.merge_custom_state("source", StepWrites(ops=(Replace(key="kept", value=1),)))
    await store.truncate_messages("source", 2)
    await store.clone_session(BranchPoint(from_session_id="source"), "branch")
    await store.delete_session("source")
    bodies = await store.database.read(lambda connection: connection.all("SELECT body FROM __agents_messages"))
    assert len(bodies) == 2, bodies
    await store.append_messages("branch", [UserMessage(content="three")])
    transcript = await store.load_transcript("branch")
    assert [stored.message.content for stored in transcript if isinstance(stored.message, UserMessage)] == [
        "one",
        "two",
        "three",
    ]
    assert (await store.load_state("branch")).custom_state == {"kept": 1}
    await store.delete_session("branch")
    for table in ("messages", "state_log", "segments", "checkpoints"):
        assert await store.database.read(lambda c, t=table: c.all(f"SELECT * FROM __agents_{t}")) == []
    await store.close()
