"""An agent is frozen data, checked when it is defined; its state survives new versions of it."""

import dataclasses
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, cast, get_args

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human, client_tool
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import RunContext, RunLink, ToolContext
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.agent.workspace import Workspace
from helix_agents.domain.errors import DefinitionError, InvalidStateError, StateSchemaChangedError, ToolOutputError
from helix_agents.domain.writes import NO_WRITES, Append, Delete, Replace, StepWrites, WriteOp, apply_writes
from helix_agents.ports.llm import ModelSettings
from helix_agents.workspaces.in_memory import InMemoryWorkspaces


class Notes(BaseModel):
    queries: list[str] = []


class MoreNotes(Notes):
    pages: int = 0


class HasQueries(Protocol):
    queries: list[str]


class Report(BaseModel):
    title: str
    body: str


@tool
async def search(ctx: ToolContext[Notes], query: str) -> list[str]:
    """Search the archive."""
    ctx.state.queries.append(query)
    return [f"a page about {query}"]


@tool(require_approval=True, retries=5)
async def publish(report_id: str) -> str:
    """Publish a finished report."""
    return f"published {report_id}"


@tool(finish_with=True)
def hand_in(title: str) -> Report:
    """Hand in a report."""
    return Report(title=title, body="")


@tool
def for_any_queries(ctx: ToolContext[HasQueries]) -> None:
    """Look at queries."""


@tool
def for_any_state(ctx: ToolContext[Any]) -> None:
    """Look at anything."""


@tool
def for_no_state(ctx: ToolContext[None, str]) -> str:
    """Look at the deps."""
    return ctx.deps


def agent(**options: Any) -> AnyAgent:
    return Agent(**{"name": "writer", "model": "anthropic:claude-sonnet-4-5", **options})


def run_context(agent: AnyAgent, state: dict[str, Any]) -> RunContext[Any, Any]:
    link = RunLink(draft=agent.draft(state))
    return RunContext(session_id="s", run_id="r", step=1, agent=agent.name, deps=None, link=link)


writer = Agent(
    name="writer",
    model="anthropic:claude-sonnet-4-5",
    instructions="Write short reports.",
    tools=[search, publish],
    state=Notes,
    output=Report,
    settings=ModelSettings(strict_output=True),
)


# ---- what it offers


def test_the_model_may_call_its_tools_and_finish() -> None:
    assert [spec.name for spec in writer.tool_specs] == ["search", "publish", "__finish__"]
    assert writer.tool_specs[-1].strict is True
    assert writer.find_tool("search") is search
    assert writer.find_tool("__finish__") is None


def test_without_output_there_is_no_finish_and_the_output_is_the_text() -> None:
    for talker in (agent(), agent(output=str)):
        assert talker.tool_specs == ()
        assert talker.output_type is None
        assert talker.load_output("bye") == "bye"
        assert talker.check_output("bye", "say") == "bye"
        with pytest.raises(ToolOutputError, match="give it output=int"):
            talker.check_output(3, "count")


def test_the_output_of_a_finishing_tool_is_checked_and_read_back() -> None:
    stored = writer.check_output(Report(title="Tides", body=""), "hand_in")
    assert stored == {"title": "Tides", "body": ""}
    assert writer.load_output(stored) == Report(title="Tides", body="")


def test_a_tool_choice_names_any_tool_that_the_agent_has() -> None:
    for choice in ("auto", "required", "none", "publish", "__finish__"):
        settings = ModelSettings(tool_choice=choice)
        assert dataclasses.replace(writer, settings=settings).settings.tool_choice == choice
    of_bundle = agent(workspace=Workspace(InMemoryWorkspaces()), settings=ModelSettings(tool_choice="workspace_ls"))
    assert of_bundle.find_tool("workspace_ls") is not None
    assert agent(output=Report, settings=ModelSettings(tool_choice="required")).tools == ()


def test_retries_are_the_tools_the_outputs_or_the_agents() -> None:
    given = agent(tools=[search, publish], state=Notes, retries=1, output_retries=7)
    names = ("search", "publish", "__finish__", "not_there")
    assert [given.retries_of(name) for name in names] == [1, 5, 7, 1]


def test_times_are_given_in_seconds_or_as_timedeltas() -> None:
    given = agent(session_ttl=timedelta(hours=1), pending_deadline=90)
    assert (given.session_ttl_ms, given.pending_deadline_ms) == (3_600_000, 90_000)
    assert (agent().session_ttl_ms, agent().pending_deadline_ms) == (None, "inherit")
    assert agent(pending_deadline=None).pending_deadline_ms is None


def test_it_cannot_be_changed_but_copied_with_a_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        writer.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    shorter = dataclasses.replace(writer, max_steps=3)
    assert (shorter.max_steps, shorter.tools, writer.max_steps) == (3, writer.tools, 20)
    tools = [search]
    mine = agent(tools=tools, state=Notes)
    tools.clear()
    assert mine.tools == (search,)
    assert repr(writer) == "<agent 'writer' version 1>"


def test_it_has_every_parameter_that_works_and_no_other() -> None:
    names = {field.name for field in dataclasses.fields(Agent)}
    assert names == {
        "name", "description", "version", "migrate_state", "model", "settings", "instructions", "tools", "state",
        "output", "max_steps", "stop_when", "retries", "output_retries", "hooks", "session_ttl", "pending_deadline",
        "persistent_agents", "capabilities", "compaction", "skills", "memory", "preload_skills", "budget", "prices",
        "workspace", "history_processors", "provider_tools", "handoffs",
        "output_checks",
    }  # fmt: skip


def test_a_compaction_that_could_not_work_is_refused() -> None:
    assert Compaction(above_tokens=1_000).kept == 250
    assert Compaction(above_tokens=1_000, keep_tokens=0).kept == 0
    for wrong, teaches in (
        ({"above_tokens": 0}, "above_tokens=0 has to be a whole number of at least 1"),
        ({"above_tokens": 1_000, "keep_tokens": -1}, "keep_tokens=-1 has to be a whole number of at least 0"),
        ({"above_tokens": 1_000, "keep_tokens": 1_000}, "leaves nothing to summarise above 1000"),
        ({"above_tokens": 1_000, "instructions": " "}, "instructions=' ' has to be a text"),
        ({"above_tokens": 1_000, "settings": {}}, r"settings={} is not a ModelSettings\(…\)"),
        ({"above_tokens": 1_000, "settings": ModelSettings(tool_choice="none")}, "the tools of this request are not"),
    ):
        with pytest.raises(DefinitionError, match=teaches):
            Compaction(**cast("Any", wrong))


async def test_instructions_are_a_text_or_a_function_of_the_run() -> None:
    async def slow(ctx: RunContext[Notes]) -> str:
        return f"slow {ctx.agent}"

    def refuses(ctx: RunContext[Notes]) -> str:
        raise FailRun("no budget")

    async def written(instructions: Any) -> str:
        given = agent(state=Notes, instructions=instructions)
        return await given.write_instructions(run_context(given, {"queries": ["a"]}))

    assert await written("Be short.") == "Be short."
    assert await written(lambda ctx: f"You asked {ctx.state.queries}.") == "You asked ['a']."
    assert await written(slow) == "slow writer"
    with pytest.raises(FailRun):
        await written(refuses)


def test_hooks_may_be_one_or_several() -> None:
    one, other = Hooks(), Hooks()
    assert [agent(hooks=given).hooks for given in (None, one, [one, other])] == [(), (one,), (one, other)]


# ---- its state


def test_a_new_session_starts_with_the_defaults_or_what_is_given() -> None:
    assert writer.initial_state() == {"queries": []}
    assert writer.initial_state(Notes(queries=["a"])) == writer.initial_state({"queries": ["a"]}) == {"queries": ["a"]}
    assert agent().initial_state() == {}
    with pytest.raises(InvalidStateError):
        writer.initial_state({"queries": 3})


def test_state_that_fits_is_loaded_as_it_is() -> None:
    loaded = writer.load_state({"queries": ["a"], "of_another": 1}, 1)
    assert loaded.custom_state == {"queries": ["a"], "of_another": 1}
    assert loaded.writes == NO_WRITES


def test_a_field_that_was_added_gets_its_default_and_keeps_it() -> None:
    loaded = agent(state=MoreNotes, version=2).load_state({"queries": ["a"]}, 1)
    assert loaded.custom_state == {"queries": ["a"], "pages": 0}
    assert loaded.writes.ops == (Replace(key="pages", value=0),)


def renamed(old: dict[str, Any], from_version: int) -> dict[str, Any]:
    if from_version < 2:
        old["queries"] = old.pop("searches")
        old["of_another"].append(2)
    return old


def test_state_of_an_earlier_version_is_migrated() -> None:
    stored = {"searches": ["a"], "of_another": [1]}
    loaded = agent(state=Notes, version=2, migrate_state=renamed).load_state(stored, 1)
    assert loaded.custom_state == {"queries": ["a"], "of_another": [1, 2]}
    assert apply_writes(stored, loaded.writes.ops) == loaded.custom_state
    assert Delete(key="searches") in loaded.writes.ops
    assert stored == {"searches": ["a"], "of_another": [1]}, "what is stored belongs to the store"


def test_a_migration_may_return_the_state_itself() -> None:
    given = agent(state=Notes, version=2, migrate_state=lambda old, version: Notes(queries=old["searches"]))
    assert given.load_state({"searches": ["a"]}, 1).custom_state == {"queries": ["a"]}


@pytest.mark.parametrize("from_version", [2, 3])
def test_state_of_this_or_a_later_version_is_migrated_only_if_it_does_not_fit(from_version: int) -> None:
    asked: list[int] = []

    def migrate(old: dict[str, Any], version: int) -> dict[str, Any]:
        asked.append(version)
        return {"queries": []}

    given = agent(state=Notes, version=2, migrate_state=migrate)
    given.load_state({"queries": ["a"]}, from_version)
    assert asked == []
    given.load_state({"queries": 3}, from_version)
    assert asked == [from_version]


def raises(old: dict[str, Any], from_version: int) -> dict[str, Any]:
    raise KeyError("searches")


@pytest.mark.parametrize(
    ("migrate_state", "says"),
    [
        (None, "queries: Input should be a valid array, got 3"),
        (lambda old, version: old, "queries: Input should be a valid array, got 3"),
        (lambda old, version: None, "migrate_state returned NoneType"),
        (lambda old, version: {"queries": object()}, "migrate_state returned"),
        (raises, "migrate_state raised KeyError: 'searches'"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_the_error_names_the_cure(migrate_state: Any, says: str) -> None:
    given = agent(state=Notes, version=2, migrate_state=migrate_state)
    with pytest.raises(StateSchemaChangedError, match=says) as refused:
        given.load_state({"queries": 3}, 1)
    assert (refused.value.agent, refused.value.version, refused.value.stored_version) == ("writer", 2, 1)
    assert "migrate_state=…, a function (old, from_version) -> new" in str(refused.value)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (Replace(key="queries", value=3), "queries: Input should be a valid array, got 3"),
        (Append(key="queries", items=[3]), "queries.0: Input should be a valid string"),
        (Replace(key="querys", value=[]), "querys: no such field; it has queries"),
    ],
)
def test_writes_that_leave_state_which_does_not_fit_are_refused(write: WriteOp, says: str) -> None:
    given = agent(state=Notes, migrate_state=lambda old, version: {"queries": []})
    with pytest.raises(InvalidStateError, match=says):
        given.check_writes({"queries": []}, 1, StepWrites(ops=(write,)))


@pytest.mark.parametrize(
    ("stored", "from_version", "write"),
    [
        ({"queries": ["a"]}, 2, Append(key="queries", items=["b"])),
        ({"queries": ["a"], "of_another": 1}, 2, Delete(key="of_another")),
        ({"queries": 3}, 2, Replace(key="queries", value=4)),
        ({"searches": ["a"]}, 1, Append(key="searches", items=["b"])),
        ({"queries": ["a"]}, 3, Replace(key="of_later", value=1)),
    ],
)
def test_writes_are_let_through_that_fit_or_repair_or_belong_to_another_version(
    stored: dict[str, Any], from_version: int, write: WriteOp
) -> None:
    given = agent(state=Notes, version=2, migrate_state=lambda old, version: {"queries": old["searches"]})
    given.check_writes(stored, from_version, StepWrites(ops=(write,)))


def test_a_draft_of_its_state_is_typed_and_recorded() -> None:
    draft = writer.draft({"queries": []})
    draft.value.queries.append("a")
    assert draft.custom_state() == {"queries": ["a"]}


# ---- what is refused at definition


@tool(name="search")
def another_search(query: str) -> str:
    """Search elsewhere."""
    return query


class Audit(Hooks):
    pass


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def logs(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return logs


async def ends_in_vain(*_: Any) -> bool:
    return False


def yields(*_: Any) -> Any:
    yield


class YieldingHooks(Hooks):
    async def after_tool(self, ctx: Any, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield


@pytest.mark.parametrize(
    ("options", "teaches"),
    [
        ({"name": "my agent"}, "1 to 64 of the characters"),
        ({"name": 5}, "1 to 64 of the characters"),
        ({"name": ""}, "1 to 64 of the characters"),
        ({"name": "x" * 65}, "1 to 64 of the characters"),
        ({"model": "claude"}, "names no provider"),
        ({"model": "anthropic:"}, "names no provider"),
        ({"model": object()}, "neither a name like"),
        ({"model": None}, "neither a name like"),
        ({"version": 0}, "version=0 has to be a whole number of at least 1"),
        ({"max_steps": 0}, "max_steps=0 has to be"),
        ({"max_steps": 2.5}, "max_steps=2.5 has to be"),
        ({"max_steps": True}, "max_steps=True has to be"),
        ({"retries": -1}, "retries=-1 has to be"),
        ({"output_retries": -1}, "output_retries=-1 has to be"),
        ({"instructions": None}, "instructions has to be a text, or a function"),
        ({"compaction": 100_000}, r"compaction=100000 is not a Compaction\(above_tokens="),
        ({"compaction": Compaction(above_tokens=9, model="haiku")}, "compaction of Agent .* names no provider"),
        ({"tools": [search.function], "state": Notes}, "decorate it with @tool"),
        ({"tools": ["search"]}, "'search' in tools is not a tool"),
        ({"tools": [ask_human]}, r"ask_human in tools is not a tool.*ask_human\(\)"),
        ({"tools": [Agent(name="other", model="openai:gpt-5")]}, r"another agent with its \.as_tool\(\)"),
        ({"tools": search}, "not a list of tools"),
        ({"tools": [logged(search)], "state": Notes}, "another decorator is above its @tool; put @tool on top"),
        ({"tools": [search, another_search], "state": Notes}, "two tools are called 'search'"),
        ({"tools": [ask_human("a?"), ask_human("b?")]}, "two tools are called 'ask_human'; rename one with name="),
        (
            {"tools": [search]},
            r"works on ToolContext\[Notes\], but the agent has no state; give it state=Notes, or, .*\[Any, Notes\]",
        ),
        ({"tools": [search], "state": Report}, r"works on ToolContext\[Notes\], but the agent has state=Report"),
        ({"tools": [hand_in]}, "'hand_in' finishes with Report.*give it output=Report"),
        ({"state": Report}, "every field needs a default.*title, body have none"),
        ({"output": object()}, "not a type that a model could fill in"),
        ({"description": 5}, "description=5 is not a string"),
        ({"stop_when": 5}, "stop_when=5 is not a function"),
        ({"stop_when": ends_in_vain}, "stop_when is async, but it is not awaited"),
        ({"stop_when": yields}, "stop_when is a generator"),
        ({"migrate_state": ends_in_vain}, "migrate_state is async, but it is not awaited"),
        ({"persistent_agents": PersistentAgent(Agent(name="other", model="openai:gpt-5"))}, "is not a list"),
        ({"hooks": Audit}, "did you mean to create one"),
        ({"hooks": [print]}, "not a Hooks object"),
        ({"hooks": Hooks(on_message=yields)}, "hook on_message is a generator"),
        ({"hooks": YieldingHooks()}, "hook after_tool is a generator"),
        ({"hooks": Hooks(on_message=cast("Any", "log"))}, "hook on_message='log' is not a function"),
        ({"session_ttl": True}, "session_ttl=True is not a duration"),
        ({"session_ttl": 0}, "session_ttl=0 is not a duration"),
        ({"pending_deadline": -1}, "pending_deadline=-1 is not a duration"),
        ({"settings": {"temperature": 1}}, r"settings={'temperature': 1} is not a ModelSettings\(…\)"),
        ({"settings": None}, r"settings=None is not a ModelSettings\(…\)"),
        (
            {"settings": ModelSettings(tool_choice="find"), "tools": [publish]},
            'tool_choice=\'find\' is not one of "auto", "required", "none", "publish"',
        ),
        ({"settings": ModelSettings(tool_choice="__finish__"), "tools": [publish]}, "tool_choice='__finish__' is not"),
        ({"settings": ModelSettings(tool_choice=cast("Any", ["publish"])), "tools": [publish]}, "is not one of"),
        ({"settings": ModelSettings(tool_choice="required")}, 'tool_choice="required" needs a tool to call'),
    ],
)
def test_an_agent_that_cannot_work_is_refused_with_a_reason(options: dict[str, Any], teaches: str) -> None:
    with pytest.raises(DefinitionError, match=teaches):
        agent(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [search], "state": MoreNotes},
        {"tools": [for_any_queries, for_any_state], "state": Notes},
        {"tools": [for_any_state]},
        {"tools": [for_no_state]},
        {"tools": [for_no_state], "state": Notes},
        {"tools": [hand_in], "output": Report},
        {"tools": [tool(finish_with=True, name="bye")(publish.function)]},
        {"tools": [ask_human(), ask_human("Which region?", name="ask_region")]},
        {"tools": [client_tool(name="pick", description="Pick.", input=Notes)]},
    ],
)
def test_what_fits_together_is_accepted(options: dict[str, Any]) -> None:
    assert agent(**options).tools


def test_defining_an_agent_runs_nothing() -> None:
    def explode(*_: Any) -> Any:
        pytest.fail("something ran")

    class Model:
        name = "exploding"
        ask = explode

    agent(
        model=Model(),
        instructions=explode,
        stop_when=explode,
        migrate_state=explode,
        hooks=Hooks(on_agent_start=explode),
        tools=[tool(name="explode", description="Explode.", require_approval=explode)(lambda: explode())],
    )


def test_type_arguments_can_be_read_back() -> None:
    kind: Callable[..., Any] = ToolContext[Notes]  # pyright: ignore[reportAssignmentType]
    assert get_args(kind) == (Notes, Any)


def test_a_companion_is_an_agent_with_a_mode_there_is() -> None:
    other = Agent(name="other", model="openai:gpt-5")
    wrong: Any = "nonblocking"
    with pytest.raises(DefinitionError, match=r'mode=.nonblocking. is not one of "blocking", "non_blocking"'):
        PersistentAgent(other, mode=wrong)
    name: Any = "other"
    with pytest.raises(DefinitionError, match=r"PersistentAgent\('other'\): it has to be given an Agent"):
        PersistentAgent(name)


def test_an_agent_without_a_description_says_how_it_gets_one_to_be_a_tool() -> None:
    with pytest.raises(DefinitionError, match="give the agent a description=…, or the tool one"):
        Agent(name="other", model="openai:gpt-5").as_tool()
