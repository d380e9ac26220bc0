"""Streams in Postgres keep the whole contract, with one database shared by many processes."""

import pytest

from helix_agents.backends.postgres import PostgresStreamManager
from helix_agents.testing.contracts.streams import OpenStreams, StreamManagerContract


class TestPostgresStreamManager(StreamManagerContract):
    backend = "postgres"
    most_histories = 12

    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url

    @pytest.fixture
    def open_streams(self, store_url: str) -> OpenStreams:
        return lambda **options: PostgresStreamManager.open(store_url, **options)
