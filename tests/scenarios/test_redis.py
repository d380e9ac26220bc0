"""The in-process runtime plays every scenario on Redis."""

import pytest

from helix_agents.testing.redis_service import ForeignRedis, RedisService
from tests.scenarios.test_in_process import InProcess


class TestInProcessOnRedis(InProcess):
    backend = "redis"

    @pytest.fixture
    def store_url(self, redis_service: RedisService | ForeignRedis) -> str:
        return redis_service.new_url()
