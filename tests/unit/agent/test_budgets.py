from dataclasses import replace
from typing import Any

import pytest

from helix_agents import Agent, Budget, Executor, Failed, Memory, MemoryGeneration, ScriptedModel
from helix_agents.domain.budgets import Spending, Spent
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.usage import SourceTotal, TokenCount
from helix_agents.ports.prices import cost_of, price_of
from helix_agents.testing import call

MILLION = TokenCount(prompt=800_000, completion=200_000, cached=400_000, total=1_000_000)


def _agent(**fields: Any) -> Agent[Any, str, Any]:
    given: dict[str, Any] = {"name": "writer", "description": "Writes.", "model": ScriptedModel(["Done."]), **fields}
    return Agent(**given)


def _cent(model: str, tokens: TokenCount) -> float | None:
    return 0.01 if model == "scripted" else None


def _keys(model: str, tokens: TokenCount) -> float:
    return {"gpt-9": 1.0}[model]


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (250, "is not a Budget"),
        (Budget(), "limits nothing"),
        (Budget(tokens=0), "tokens=0 has to be a whole number of at least 1"),
        (Budget(model_calls=True), "model_calls=True"),
        (Budget(cost_usd=float("nan")), "cost_usd=nan has to be a number of dollars"),
        (Budget(cost_usd=-1), "cost_usd=-1"),
        (Budget(tokens=1, scope="session"), 'is not one of "run", "tree"'),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_budget_that_nobody_could_keep_is_refused_where_it_is_given(budget: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        _agent(budget=budget)
    agent = _agent()
    async with Executor.open("memory://", agents=[agent]) as helix:
        with pytest.raises(DefinitionError, match=says):
            await helix.execute(agent, "Go", "s-1", budget=budget)
        assert not await helix.sessions.find("s-1")


def test_a_limit_in_dollars_needs_a_price_for_every_model_that_may_spend_it() -> None:
    dollar = Budget(cost_usd=1)
    with pytest.raises(DefinitionError, match="the price of model 'scripted' of 'writer' is unknown"):
        _agent(budget=dollar)
    assert _agent(budget=dollar, prices=_cent).budget == dollar
    helper = _agent(name="helper", model=ScriptedModel([], name="other"))
    with pytest.raises(DefinitionError, match="the price of model 'other' of 'helper' is unknown"):
        _agent(budget=dollar, prices=_cent, tools=[helper.as_tool()])
    _agent(budget=Budget(cost_usd=1, scope="run"), prices=_cent, tools=[helper.as_tool()])
    with pytest.raises(DefinitionError, match="raised KeyError for model 'scripted'"):
        _agent(budget=dollar, prices=_keys)
    with pytest.raises(DefinitionError, match="prices is async"):
        _agent(prices=_asks_around)
    with pytest.raises(DefinitionError, match="not a number of dollars"):
        _agent(budget=dollar, prices=lambda *_: "cheap")


async def _asks_around(model: str, tokens: TokenCount) -> float:
    return 0.0


def test_prices_come_from_the_list_of_the_provider_layer() -> None:
    assert price_of("openai:gpt-5", MILLION) == pytest.approx(0.4 * 1.25 + 0.4 * 0.125 + 0.2 * 10)
    assert price_of("openai-chat:gpt-5", MILLION) == price_of("openai:gpt-5", MILLION)
    assert price_of("anthropic:claude-sonnet-4-5", MILLION) is not None
    assert price_of("google:gemini-2.5-pro", MILLION) is not None
    assert price_of("openai:nobody-knows-me", MILLION) is None
    assert price_of("elsewhere:gpt-5", MILLION) is None
    # What the agent says comes first.
    assert price_of("openai:gpt-5", MILLION, lambda *_: 7) == 7
    assert _agent(model="openai:gpt-5", budget=Budget(cost_usd=1)).budget == Budget(cost_usd=1)


async def test_dollars_are_counted_as_the_agents_that_spend_them_price_them() -> None:
    child = _agent(name="child", model=ScriptedModel(["Found."], name="dear"), prices=lambda *_: 0.3)
    script = [call("subagent__child", {"message": "Seek"}), call("subagent__child", {"message": "Seek"}), "Done."]
    head = _agent(
        model=ScriptedModel(script), tools=[child.as_tool()], prices=_cent, budget=Budget(cost_usd=0.5), name="head"
    )
    async with Executor.open("memory://", agents=[head]) as helix:
        result = await (await helix.execute(head, "Go", "s-1")).result()
        assert isinstance(result, Failed)
        assert result.code == "budget_exhausted"
        assert "$0.62 of $0.5 used by it and its sub-agents" in result.error
        spent = (await helix.sessions.get("s-1")).spent
        assert spent is not None
        assert spent.own == Spending(tokens=spent.own.tokens, cost_usd=0.02, model_calls=2)
        assert spent.below.cost_usd == pytest.approx(0.6)


def _breaks(model: str, tokens: TokenCount) -> float:
    return 1 / 0 if tokens.total else 0.0


@pytest.mark.parametrize(("prices", "name"), [(_cent, "unknown"), (_breaks, "scripted")])
async def test_a_model_without_a_price_is_not_asked_twice_on_a_budget_in_dollars(prices: Any, name: str) -> None:
    agent = _agent(prices=prices, budget=Budget(cost_usd=1))
    model = ScriptedModel([call("nothing"), "Done."], name=name)
    async with Executor.open("memory://", agents=[agent]) as helix:
        result = await (await helix.execute(agent, "Go", "s-1", model=model)).result()
        assert isinstance(result, Failed)
        assert (result.code, model.asked) == ("price_unknown", 1)
        assert repr(name) in result.error


async def test_a_sub_agents_own_budget_fails_it_alone() -> None:
    script = [call("nothing"), call("nothing"), "Done."]
    child = _agent(name="child", model=ScriptedModel(script), budget=Budget(model_calls=1))
    head = _agent(
        model=ScriptedModel([call("subagent__child", {"message": "Go"}, id="c"), "It gave up."]),
        tools=[child.as_tool()],
        budget=Budget(tokens=100_000),
    )
    async with Executor.open("memory://", agents=[head]) as helix:
        assert await (await helix.execute(head, "Go", "s-1")).output() == "It gave up."
        said = (await helix.sessions.messages("s-1")).items[1].message
        assert "The sub-agent failed (budget_exhausted)" in str(said)


async def test_a_turn_that_waits_in_the_queue_keeps_the_budget_of_its_call() -> None:
    agent = _agent(model=ScriptedModel([call("nothing"), "Hello.", call("nothing"), "Done."]))
    async with Executor.open("memory://", agents=[agent]) as helix:
        first = await helix.execute(agent, "Go", "s-1")
        second = await helix.execute(agent, "Go", "s-1", if_running="enqueue", budget=Budget(model_calls=1))
        assert await first.output() == "Hello."
        result = await second.result()
        assert isinstance(result, Failed)
        assert result.code == "budget_exhausted"


async def test_memories_are_paid_from_the_budget_and_not_made_when_it_is_spent() -> None:
    learner = ScriptedModel(lambda _: call("remember", {"save": ["Likes the sea."]}), name="learner")
    agent = _agent(
        budget=Budget(model_calls=2),
        model=ScriptedModel(lambda _: "Done."),
        memory=Memory(generation=MemoryGeneration(model=learner)),
    )
    async with Executor.open("memory://", agents=[agent]) as helix:
        assert await (await helix.execute(agent, "I like the sea.", "s-1", user_id="ann")).output() == "Done."
        spent = (await helix.sessions.get("s-1")).spent
        assert spent is not None
        assert (learner.asked, spent.own.model_calls) == (1, 2)
        small = replace(agent, budget=Budget(model_calls=1))
        assert await (await helix.execute(small, "I like boats.", "s-2", user_id="ann")).output() == "Done."
        assert learner.asked == 1


def test_what_sub_agents_used_only_grows_and_is_settled_once() -> None:
    two, three = Spending(tokens=2, model_calls=2), Spending(tokens=3, model_calls=3)
    spent = Spent(since="r").used(two, {"a": three, "b": two}).used(Spending(), {"a": two})
    assert spent.at_work == {"a": three, "b": two}
    assert spent.total == spent.settled().total == Spending(tokens=7, model_calls=7)
    assert spent.settled().settled() == spent.settled()


def _source(model: str, calls: int, tokens: TokenCount) -> SourceTotal:
    return SourceTotal(source_type="tokens", source_name=model, calls=calls, tokens=tokens)


def test_what_many_calls_cost_is_what_each_of_them_costs() -> None:
    def tiers(model: str, tokens: TokenCount) -> float:
        return 1.0 + tokens.prompt * (2.0 if tokens.prompt > 1_000 else 1.0)

    assert cost_of(_source("house", 1, TokenCount(prompt=10)), tiers) == 11
    assert cost_of(_source("house", 3, TokenCount(prompt=1_000)), tiers) == 3 + 1_000
    assert cost_of(_source("house", 3, TokenCount(prompt=6_000)), tiers) == 3 + 12_000
    assert cost_of(_source("house", 0, TokenCount()), tiers) == 1
    assert cost_of(_source("house", 2, TokenCount(prompt=10))) is None
    listed, alone = TokenCount(prompt=300_000, completion=3_000), TokenCount(prompt=100_000, completion=1_000)
    assert cost_of(_source("google:gemini-2.5-pro", 3, listed)) == pytest.approx(
        3 * (price_of("google:gemini-2.5-pro", alone) or 0)
    )


async def test_usage_says_what_models_cost_that_have_a_price_without_any_budget() -> None:
    child = _agent(name="child", model=ScriptedModel(["Found."], name="dear"), prices=lambda *_: 0.3)
    strange = _agent(name="strange", model=ScriptedModel(["What?"], name="nobody's"), prices=_keys)
    tools = [child.as_tool(), strange.as_tool()]
    script = [call("subagent__child", {"message": "Look"}), call("subagent__strange", {"message": "Look"}), "Done."]
    head = _agent(name="head", model=ScriptedModel(script), tools=tools, prices=_cent)
    async with Executor.open("memory://", agents=[head]) as helix:
        run = await helix.execute(head, "Go", "s-1")
        assert await run.output() == "Done."
        used = await run.usage()
    assert used.cost_usd == pytest.approx(0.33)
    assert used.unpriced == ("nobody's",)
