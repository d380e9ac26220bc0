"""Streams in memory keep the whole contract; their data lives in one process, so proofs with several do not apply."""

import pytest

from helix_agents.backends.in_memory import InMemoryStreamManager, Memory
from helix_agents.testing.contracts.streams import OpenStreams, StreamManagerContract


class TestInMemoryStreamManager(StreamManagerContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_streams(self) -> OpenStreams:
        memory = Memory()
        return lambda **options: InMemoryStreamManager(memory, **options)

    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"
