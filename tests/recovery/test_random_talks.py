"""Conversations that go anywhere keep their promises, wherever their processes die."""

import asyncio
import logging
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock
from tests.recovery.random_talk import Talk

_numbers = count(1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    # What goes wrong here goes wrong on purpose, and not every reporter of tests can carry what it says.
    caplog.set_level(logging.CRITICAL, logger="helix_agents")


async def talk(seed: int, moves: list[int]) -> None:
    clock = ManualClock()
    url = f"memory://talk-{next(_numbers)}"
    async with await open_backend(url, clock=clock) as parts, asyncio.timeout(60):
        await Talk(seed, parts, clock).go([0, *moves])


@given(seed=st.integers(0, 10_000), moves=st.lists(st.integers(0, 200_000), max_size=6))
def test_a_talk_keeps_its_promises(seed: int, moves: list[int]) -> None:
    asyncio.run(talk(seed, moves))
