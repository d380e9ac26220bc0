"""The whole contract of a stream manager, combined in one class to inherit."""

import itertools
from collections.abc import Awaitable
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from helix_agents.ports.streams import StreamManager
from helix_agents.testing.contracts.stream_claims import ClaimsContract
from helix_agents.testing.contracts.stream_commit_ends import CommitEndsContract
from helix_agents.testing.contracts.stream_handles import OpenStreams, StreamsContract
from helix_agents.testing.contracts.stream_ownership import OwnershipContract
from helix_agents.testing.contracts.stream_processes import StreamProcessesContract
from helix_agents.testing.contracts.stream_reading import ReadingContract
from helix_agents.testing.contracts.stream_resting import RestingContract
from helix_agents.testing.contracts.stream_riding import RidingContract
from helix_agents.testing.contracts.stream_shrinking import ShrinkingContract
from helix_agents.testing.contracts.stream_status import StatusContract
from helix_agents.testing.contracts.stream_writing import WritingContract
from helix_agents.testing.model import machine_settings
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.stream_model import StreamMachine

__all__ = ["OpenStreams", "StreamManagerContract"]


class HistoriesContract(StreamsContract):
    """Random histories, compared step by step."""

    most_histories: ClassVar[int | None] = None
    """For you to set if each operation is slow: how many histories are enough for one run of the tests."""

    @pytest.mark.parametrize("most", [None, 4])
    @proves("numbers.like-the-reference", "numbers.cursor-is-exact", "numbers.what-is-gone-is-named")
    def test_any_history_looks_as_on_the_reference(self, open_streams: OpenStreams, most: int | None):
        examples = itertools.count(1)

        class Machine(StreamMachine):
            max_chunks = most

            def open_tested(self, **options: Any) -> StreamManager | Awaitable[StreamManager]:
                # Its own namespace makes every history start empty, on one set of data.
                return open_streams(namespace=f"history-{next(examples)}", **options)

        run_state_machine_as_test(Machine, settings=machine_settings(self.most_histories))


class StreamManagerContract(
    WritingContract,
    OwnershipContract,
    StatusContract,
    ReadingContract,
    ShrinkingContract,
    RidingContract,
    ClaimsContract,
    CommitEndsContract,
    RestingContract,
    HistoriesContract,
    StreamProcessesContract,
):
    """Everything a stream manager has to guarantee: inherit it and provide the fixtures `open_streams` and
    `store_url`."""
