"""Sessions that were cut again and again and then branched: what deleting them costs, and what is left of them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from helix_agents.domain.messages import UserMessage
from helix_agents.domain.sessions import BranchPoint
from helix_agents.domain.writes import Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.seams import CountingSeam

ReadRows = Callable[[str], Awaitable[Sequence[Any]]]
"""All rows of one of our tables."""


async def check_what_is_left(store: SessionStateStore, rows: ReadRows) -> None:
    await store.create_session("source")
    await store.append_messages("source", [UserMessage(content=text) for text in ("one", "two", "secret", "four")])
    await store.truncate_messages("source", 3)
    await store.merge_custom_state("source", StepWrites(ops=(Replace(key="kept", value=1),)))
    await store.truncate_messages("source", 2)
    await store.clone_session(BranchPoint(from_session_id="source"), "branch")
    await store.delete_session("source")
    assert len(await rows("messages")) == 2
    await store.append_messages("branch", [UserMessage(content="three")])
    said = [
        row.message.content for row in await store.load_transcript("branch") if isinstance(row.message, UserMessage)
    ]
    assert said == ["one", "two", "three"]
    assert (await store.load_state("branch")).custom_state == {"kept": 1}
    await store.delete_session("branch")
    for table in ("messages", "state_log", "segments", "checkpoints"):
        assert list(await rows(table)) == []


async def check_cost_of_deleting(store: SessionStateStore, seam: CountingSeam) -> None:
    """Whoever deletes a session keeps others from writing meanwhile, and so looks at each stretch of it once."""
    costs: list[int] = []
    for cuts in (10, 40):
        source, branch = f"source-{cuts}", f"branch-{cuts}"
        await store.create_session(source)
        for count in range(1, cuts + 1):
            await store.append_messages(source, [UserMessage(content="kept"), UserMessage(content="cut off")])
            await store.truncate_messages(source, count)
        await store.clone_session(BranchPoint(from_session_id=source), branch)
        seam.reset()
        await store.delete_session(source)
        costs.append(seam.count)
        assert len(await store.load_transcript(branch)) == cuts
    assert costs[1] < 5 * costs[0]
