"""Stores that each break one promise; a comment tells which requirement has to catch it."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace

from helix_agents.backends.in_memory import InMemoryStateStore, Memory
from helix_agents.domain.sessions import StatusChanged, StatusConflict
from helix_agents.testing.contracts.checkpoints import CheckpointsContract
from helix_agents.testing.contracts.crashes import CrashesContract
from helix_agents.testing.contracts.flags import FlagsContract
from helix_agents.testing.contracts.histories import HistoriesContract
from helix_agents.testing.contracts.lineage import LineageContract
from helix_agents.testing.contracts.races import RacesContract
from helix_agents.testing.contracts.saving import SavingContract
from helix_agents.testing.contracts.sessions import SessionsContract
from helix_agents.testing.contracts.staging import StagingContract
from helix_agents.testing.contracts.store_handles import OpenStore, StoreContract

settings.register_profile("foretold", derandomize=True, database=None)
settings.load_profile("foretold")


class Broken(StoreContract):
    """Opens the broken store that a class names."""

    several_processes = False
    kind: type[InMemoryStateStore]

    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = Memory()
        return lambda **options: self.kind(memory, **options)


class HighestStep(InMemoryStateStore):
    async def get_latest_checkpoint(self, session_id: str) -> Any:
        page = await self.list_checkpoints(session_id, limit=200)
        return max(page.items, key=lambda checkpoint: checkpoint.step_count, default=None)


class TestHighestStep(Broken, CheckpointsContract):  # checkpoints.latest-is-last-written
    kind = HighestStep


class Unfenced(InMemoryStateStore):
    async def stage_changes(self, session_id: str, change: Any, *, fence: Any = None, synced: bool = True) -> None:
        await super().stage_changes(session_id, change)


class TestUnfenced(Broken, StagingContract):  # fence.older-run-refused
    kind = Unfenced


class PatchReplaces(InMemoryStateStore):
    async def patch_metadata(self, session_id: str, patch: dict[str, str | None]) -> dict[str, str]:
        everything = (await self.load_state(session_id)).metadata
        return await super().patch_metadata(session_id, {**dict.fromkeys(everything), **patch})


class TestPatchReplaces(Broken, SessionsContract):  # sessions.metadata-patched
    kind = PatchReplaces


class CheckThenAct(InMemoryStateStore):
    async def compare_and_set_status(self, session_id: str, expected: Any, new: Any, **options: Any) -> Any:
        found = await self.load_state(session_id)
        expected_version = options.pop("expected_version", None)
        await asyncio.sleep(0)
        if found.status not in expected or expected_version not in (None, found.version):
            return StatusConflict(current_status=found.status, current_version=found.version)
        return StatusChanged(new_version=await self.update_status(session_id, new, **options))


class TestCheckThenAct(Broken, SavingContract):  # status.one-winner
    kind = CheckThenAct


class StickyFlag(InMemoryStateStore):
    async def check_interrupt_flag(self, session_id: str) -> Any:
        return await self.find_interrupt_flag(session_id)


class TestStickyFlag(Broken, FlagsContract):  # flags.taken-once
    kind = StickyFlag


class TwoCommits(InMemoryStateStore):
    """Appends the messages of a step before it commits the rest."""

    async def save_state_and_promote_staging(
        self, session_id: str, state: Any, append_messages: Any, *rest: Any, **options: Any
    ) -> Any:
        await self.append_messages(session_id, append_messages)
        return await super().save_state_and_promote_staging(session_id, state, (), *rest, **options)


class TestTwoCommits(Broken, CrashesContract):  # crash.all-or-nothing
    kind = TwoCommits


class LateExpectation(InMemoryStateStore):
    """Looks at what a start expects before it starts, not while."""

    async def start_run(self, start: Any) -> Any:
        if start.create is None and start.expected_version is not None:
            found = await self.load_state(start.session_id)
            if found.version == start.expected_version:
                await self.renew_lease("a statement in between", 1)
                start = replace(start, expected_version=None)
        return await super().start_run(start)


class TestLateExpectation(Broken, RacesContract):  # races.start-and-start
    kind = LateExpectation


class EagerTruncation(InMemoryStateStore):
    """Deletes what nobody but a branch can see."""

    async def truncate_messages(self, session_id: str, count: int) -> int:
        texts = [row.message for row in await self.load_transcript(session_id)]
        answer = await super().truncate_messages(session_id, count)
        for other in (await self.list_sessions()).items:
            if other.session_id != session_id and other.message_count > count and texts:
                await super().truncate_messages(other.session_id, count)
        return answer


class TestEagerTruncation(Broken, LineageContract):  # lineage.branch-survives-its-source
    kind = EagerTruncation


class Miscounting(InMemoryStateStore):
    """Does the work and answers how many were appended, not how many there are."""

    async def append_messages(self, session_id: str, messages: Any) -> int:
        return len(messages) if await super().append_messages(session_id, messages) else 0


class TestMiscounting(Broken, HistoriesContract):  # store.like-the-reference
    kind = Miscounting
