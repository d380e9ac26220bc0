"""A round of cleaning up asks the store no oftener than it has to."""

from helix_agents.backends.in_memory import InMemoryStateStore, Memory
from helix_agents.domain.commits import StartRun
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import CreateSession, SessionState
from helix_agents.engine.requests.cleanup import CleanupSummary, expired_session_cleanup

OVER = 1


class Counting(InMemoryStateStore):
    """A store that remembers which sessions were loaded."""

    def __init__(self) -> None:
        super().__init__(Memory())
        self.loaded: list[SessionId] = []

    async def load_state(self, session_id: SessionId) -> SessionState:
        self.loaded.append(session_id)
        return await super().load_state(session_id)

    async def begin(self, session_id: SessionId, expires_at: int | None, parent: SessionId | None = None) -> None:
        create = CreateSession(expires_at=expires_at, parent_session_id=parent, root_session_id=parent)
        await self.start_run(StartRun(session_id=session_id, run_id=f"r-{session_id}", create=create))


async def test_a_round_looks_once_at_the_root_of_many_sessions_that_expire_with_it() -> None:
    store = Counting()
    # Whoever comes back moves the time of the root, and not of those below it; a tree of which the root is over ends.
    for root, expires_at in (("lives", None), ("over", OVER)):
        await store.begin(root, expires_at)
        for number in range(5):
            await store.begin(f"{root}-{number}", OVER, root)
    store.loaded.clear()
    assert await expired_session_cleanup(store) == CleanupSummary(detected=1, marked=1)
    assert sorted(store.loaded) == ["lives", "over"]
