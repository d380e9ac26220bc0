"""A setting that no executor looks at is refused, and not forgotten without a word."""

from pathlib import Path

import pytest

from helix_agents.domain.errors import DefinitionError
from helix_agents.runtimes.dbos import DBOSAgentExecutor
from helix_agents.runtimes.in_process import Executor
from helix_agents.runtimes.temporal import TemporalAgentExecutor


@pytest.mark.parametrize("kind", [Executor, DBOSAgentExecutor, TemporalAgentExecutor])
async def test_a_setting_that_is_not_there_is_named_with_the_one_that_was_meant(kind: type[Executor], tmp_path: Path):
    refused = f"{kind.__name__}: there is no setting 'janitor_second'; did you mean 'janitor_seconds'"
    with pytest.raises(DefinitionError, match=refused):
        async with kind.open(f"sqlite:///{tmp_path}/helix.db", janitor_second=5):
            raise AssertionError("it was opened")


async def test_where_none_was_meant_all_are_named():
    with pytest.raises(DefinitionError, match=r"no setting 'model'; there are agents, .*, max_running, .*\."):
        async with Executor.open("memory://", model="anthropic:claude"):
            raise AssertionError("it was opened")
