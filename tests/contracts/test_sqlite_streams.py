"""Streams in SQLite keep the whole contract, with one file shared by many processes."""

from pathlib import Path

import pytest

from helix_agents.backends.sqlite import SQLiteStreamManager
from helix_agents.testing.contracts.streams import OpenStreams, StreamManagerContract


class TestSQLiteStreamManager(StreamManagerContract):
    backend = "sqlite"

    @pytest.fixture
    def open_streams(self, tmp_path: Path) -> OpenStreams:
        return lambda **options: SQLiteStreamManager.open(tmp_path / "helix.db", **options)

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}"
