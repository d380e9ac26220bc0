"""A setting that no executor looks at is refused, and not forgotten without a word."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.domain.errors import DefinitionError
from helix_agents.engine.services import EngineOptions
from helix_agents.runtimes.dbos import DBOSAgentExecutor
from helix_agents.runtimes.dbos.executor import DBOSSettings
from helix_agents.runtimes.executor.settings import RunSettings
from helix_agents.runtimes.in_process import Executor
from helix_agents.runtimes.in_process.executor import InProcessSettings
from helix_agents.runtimes.temporal import TemporalAgentExecutor, TemporalOptions
from helix_agents.runtimes.temporal.executor import TemporalSettings


@pytest.mark.parametrize("kind", [Executor, DBOSAgentExecutor, TemporalAgentExecutor])
async def test_a_setting_that_is_not_there_is_named_with_the_one_that_was_meant(kind: Any, tmp_path: Path):
    refused = f"{kind.__name__}: there is no setting 'janitor_second'; did you mean 'janitor_seconds'"
    with pytest.raises(DefinitionError, match=refused):
        async with kind.open(f"sqlite:///{tmp_path}/helix.db", janitor_second=5):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    "setting",
    [
        {"lease_ms": 0},
        {"lease_ms": -1},
        {"lease_ms": "2s"},
        {"janitor_seconds": 0},
        {"janitor_seconds": -1},
        {"janitor_seconds": "15"},
    ],
)
async def test_a_time_that_would_never_let_it_rest_is_refused(setting: Any):
    name, value = next(iter(setting.items()))
    with pytest.raises(DefinitionError, match=f"Executor: {name}={value!r} (is not a|has to be a whole) "):
        async with Executor.open("memory://", **setting):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("setting", "teaches"),
    [
        ({"max_running": 0}, "max_running=0 has to be a whole number of at least 1; None means no limit"),
        ({"max_parallel_tools": 0}, "max_parallel_tools=0 has to be"),
        ({"grace": -1}, "grace=-1 is not a number of seconds"),
        ({"grace": "20"}, "grace='20' is not a number of seconds"),
        ({"deps": 5}, r"deps=5 is not a function; give one that takes the session's id and its user"),
        ({"hooks": print}, "is not a Hooks object"),
        ({"options": 5}, r"options=5 is not an EngineOptions\(…\)"),
        ({"agents": ["guide"]}, "'guide' in agents is not an Agent"),
        ({"agents": None}, r"agents=None is not a list; write agents=\[…\]"),
    ],
)
@pytest.mark.parametrize("kind", [Executor, DBOSAgentExecutor, TemporalAgentExecutor])
async def test_a_setting_that_cannot_work_is_refused(kind: Any, setting: Any, teaches: str, tmp_path: Path):
    with pytest.raises(DefinitionError, match=f"{kind.__name__}: .*{teaches}"):
        async with kind.open(f"sqlite:///{tmp_path}/helix.db", **setting):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("option", "teaches"),
    [
        ({"effect_lease_ms": 0}, "effect_lease_ms=0 has to be a whole number of at least 1"),
        ({"effect_lease_ms": float("nan")}, "effect_lease_ms=nan has to be a whole number"),
        ({"model_retries": -1}, "model_retries=-1 has to be a whole number of at least 0"),
        ({"result_bytes": "1 MB"}, "result_bytes='1 MB' has to be a whole number"),
        ({"max_depth": True}, "max_depth=True has to be a whole number of at least 0"),
        (
            {"pending_deadline_ms": 0},
            "pending_deadline_ms=0 has to be a whole number of at least 1; None means forever",
        ),
        ({"cancel_grace_seconds": -1}, "cancel_grace_seconds=-1 is not a number of seconds"),
        ({"first_retry_seconds": float("nan")}, "first_retry_seconds=nan is not a number of seconds"),
        ({"longest_retry_seconds": None}, "longest_retry_seconds=None is not a number of seconds"),
    ],
)
def test_an_option_that_no_run_could_follow_is_refused(option: Any, teaches: str):
    with pytest.raises(DefinitionError, match=f"EngineOptions: {teaches}"):
        EngineOptions(**option)


def test_a_url_given_to_the_executor_itself_is_told_to_go_to_open():
    make: Any = Executor
    with pytest.raises(DefinitionError, match=r"Executor: it is opened by a URL: Executor\.open\('memory://', …\)"):
        make("memory://")


def test_options_at_their_limits_are_taken():
    forever = float("inf")
    least = EngineOptions(model_retries=0, max_depth=0, cancel_grace_seconds=0, effect_lease_ms=1)
    most = EngineOptions(longest_retry_seconds=forever, pending_deadline_ms=None)
    assert (least.model_retries, most.pending_deadline_ms) == (0, None)


async def test_a_place_for_workflows_that_there_is_none_of_is_refused(tmp_path: Path):
    wrong: Any = "elswhere"
    with pytest.raises(DefinitionError, match=r'placement=.elswhere. is not one of "here"'):
        async with DBOSAgentExecutor.open(f"sqlite:///{tmp_path}/helix.db", placement=wrong):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("setting", "teaches"),
    [
        ({"poll_seconds": 0}, "poll_seconds=0 has to be a number of seconds above 0"),
        ({"executor_id": ""}, "executor_id='' has to be a text that is not blank"),
        ({"poll_seconds": float("nan")}, "poll_seconds=nan has to be a number of seconds above 0"),
        ({"dbos_config": {"executor_id": "web-1"}}, "dbos_config has 'executor_id'; give it as executor_id=… instead"),
        ({"dbos_config": {"system_database_url": "sqlite:///x"}}, "give it as system_database_url=… instead"),
    ],
)
async def test_a_setting_of_dbos_that_cannot_work_is_refused(setting: Any, teaches: str, tmp_path: Path):
    with pytest.raises(DefinitionError, match=f"DBOSAgentExecutor: .*{teaches}"):
        async with DBOSAgentExecutor.open(f"sqlite:///{tmp_path}/helix.db", **setting):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("option", "teaches"),
    [
        ({"heartbeat_seconds": 0}, "heartbeat_seconds=0 has to be a number of seconds above 0"),
        ({"task_seconds": -1}, "task_seconds=-1 has to be a number of seconds above 0"),
        ({"tool_seconds": float("inf")}, "tool_seconds=inf has to be a number of seconds above 0"),
        ({"effect_seconds": None}, "effect_seconds=None has to be a number of seconds above 0"),
        ({"sticky_seconds": True}, "sticky_seconds=True has to be a number of seconds above 0"),
        ({"history_events": 0}, "history_events=0 has to be a whole number of at least 1"),
        ({"max_effects": 0.5}, "max_effects=0.5 has to be a whole number of at least 1"),
    ],
)
def test_an_option_that_no_workflow_could_follow_is_refused(option: Any, teaches: str):
    with pytest.raises(DefinitionError, match=f"TemporalOptions: {teaches}"):
        TemporalOptions(**option)


@pytest.mark.parametrize(
    ("setting", "teaches"),
    [
        ({"task_queue": ""}, "TemporalAgentExecutor: task_queue='' has to be a text that is not blank"),
        ({"temporal_namespace": " "}, "temporal_namespace=' ' has to be a text that is not blank"),
        ({"address": None}, "address=None has to be a text that is not blank"),
        ({"address": "not an address"}, "Temporal: address='not an address' cannot be used: .*; write host:port"),
        ({"works": "no"}, "works='no' is neither True nor False"),
        ({"temporal": 5}, r"temporal=5 is not a TemporalOptions\(…\)"),
        ({"client_settings": {"apikey": "x"}}, "client_settings has 'apikey', .*; did you mean 'api_key'"),
        ({"client_settings": {"namespace": "x"}}, "client_settings has 'namespace', which its client does not accept"),
    ],
)
async def test_a_setting_of_temporal_that_cannot_work_is_refused(setting: Any, teaches: str, tmp_path: Path):
    with pytest.raises(DefinitionError, match=teaches):
        async with TemporalAgentExecutor.open(f"sqlite:///{tmp_path}/helix.db", **setting):
            raise AssertionError("it was opened")


async def test_where_none_was_meant_all_are_named():
    wrong: Any = {"model": "anthropic:claude"}
    with pytest.raises(DefinitionError, match=r"no setting 'model'; there are agents, .*, max_running, .*\."):
        async with Executor.open("memory://", **wrong):
            raise AssertionError("it was opened")


async def test_one_agent_in_place_of_a_list_is_named():
    alone: Any = Agent(name="alone", model="openai:gpt-5")
    with pytest.raises(
        DefinitionError, match=r"<agent 'alone' version 1> is one agent, not a list; write agents=\[…\]"
    ):
        async with Executor.open("memory://", agents=alone):
            raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Executor, InProcessSettings), (DBOSAgentExecutor, DBOSSettings), (TemporalAgentExecutor, TemporalSettings)],
)
def test_an_editor_knows_every_setting_of_open(kind: type[Any], settings: type[Any]):
    parts = {"self", "state", "streams", "usage", "settings"}
    own = set(inspect.signature(kind.__init__).parameters) - parts
    assert set(settings.__annotations__) == {*own, *RunSettings.__annotations__}


def test_an_executor_that_was_not_opened_says_how_it_is():
    forgotten: Any = Executor.open("memory://")
    with pytest.raises(
        AttributeError, match=r"Executor\.open\(…\) is not open yet, so it has no 'execute'; write `async with"
    ):
        forgotten.execute("agent", "Hello")
