"""The in-process runtime plays every scenario on Postgres."""

import pytest

from tests.scenarios.test_in_process import InProcess


# Some scenarios keep four janitors busy with hundreds of sessions, over a network.
@pytest.mark.timeout(300)
class TestInProcessOnPostgres(InProcess):
    backend = "postgres"

    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url
