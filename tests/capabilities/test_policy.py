"""Policy: a pure function over rules that only ever makes a call stricter."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents.capabilities.approvals import decide_approval
from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.capabilities.declaring import TIERS
from helix_agents.capabilities.housekeeping import sweep_state
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.policy import Policy, Rate, Rule, decide
from helix_agents.capabilities.rates import is_over
from helix_agents.capabilities.scopes import ALERTS, RATES
from helix_agents.capabilities.settings import StateSettings
from helix_agents.capabilities.toolset import state_capabilities
from helix_agents.domain.capability_errors import ApprovalPending, InvalidInput, PolicyDenied
from helix_agents.domain.entries import session_scope
from helix_agents.domain.errors import DefinitionError
from helix_agents.testing.clock import ManualClock
from tests.capabilities.worlds import World, approved

keyed = ["*", "state.*", "state.shared.set"]
rules = st.lists(
    st.builds(
        lambda about, **fields: Rule(applies_to=about[0], when=about[1], **fields),
        st.sampled_from([(name, {}) for name in (*keyed, "state.backup.*", "alerts.send")])
        | st.sampled_from([(name, {"key": key}) for name in keyed for key in ("config.*", "exact")]),
        name=st.text(min_size=1, max_size=5),
        tier=st.sampled_from(TIERS),
        agents=st.sampled_from([(), ("ann",), ("bob",)]),
    ),
    max_size=6,
)


KEYED = Rule(name="r", applies_to="*", tier="blocked", when={"key": "a.*", "version": 1})
CALM = Rule(name="calm", applies_to="*", rate=Rate(most=1, seconds=1))


@given(rules=rules, name=st.sampled_from(sorted(CATALOGUE)), key=st.sampled_from(["config.a", "exact", "other"]))
def test_no_set_of_rules_relaxes_anything_and_order_does_not_matter(rules: list[Rule], name: str, key: str) -> None:
    capability = CATALOGUE[name]
    found = decide(Policy(rules=rules), capability, "ann", {"key": key})
    assert TIERS.index(found.tier) >= TIERS.index(capability.tier)
    assert decide(Policy(rules=rules[::-1]), capability, "ann", {"key": key}).tier == found.tier
    fewer = decide(Policy(rules=rules[:-1]), capability, "ann", {"key": key})
    assert TIERS.index(fewer.tier) <= TIERS.index(found.tier)


@pytest.mark.parametrize(
    ("rule", "inputs", "decides"),
    [
        (Rule(name="r", applies_to="alerts.send", tier="blocked"), {}, True),
        (Rule(name="r", applies_to="alerts.list", tier="blocked"), {}, False),
        (Rule(name="r", applies_to="alerts.*", tier="blocked"), {}, True),
        (Rule(name="r", applies_to="alerts.*", tier="blocked", agents=["ann", "bob"]), {}, True),
        (Rule(name="r", applies_to="alerts.*", tier="blocked", agents=["bob"]), {}, False),
        (
            KEYED,
            {"key": "a.b", "version": 1},
            True,
        ),
        (
            KEYED,
            {"key": "a.b", "version": 2},
            False,
        ),
        (
            KEYED,
            {"key": "b", "version": 1},
            False,
        ),
        (Rule(name="r", applies_to="*", tier="blocked", when={"key": None}), {}, True),
    ],
)
def test_a_rule_is_about_the_calls_that_it_names(rule: Rule, inputs: dict[str, Any], decides: bool) -> None:
    found = decide(Policy(rules=[rule]), CATALOGUE["alerts.send"], "ann", inputs)
    assert (found.tier, found.rule) == (("blocked", "r") if decides else (CATALOGUE["alerts.send"].tier, None))


def test_what_decided_is_the_first_that_made_it_stricter() -> None:
    rules = [Rule(name="a", applies_to="*", tier="notify"), Rule(name="b", applies_to="*", tier="blocked")]
    policy = Policy(rules=[*rules, replace(rules[1], name="c")])
    decided = [decide(policy, CATALOGUE["alerts.send"], "ann", {}).rule]
    decided.append(decide(Policy(rules=rules[:1]), CATALOGUE["alerts.send"], "ann", {}).rule)
    assert (decided, CATALOGUE["alerts.send"].tier) == (["b", None], "notify")


def test_a_rate_holds_once_more_calls_were_made_than_pass() -> None:
    rule = Rule(name="calm", applies_to="*", tier="notify", rate=Rate(most=2, seconds=60, then="blocked"))
    get = CATALOGUE["state.shared.get"]
    tiers = [decide(Policy(rules=[rule]), get, "ann", {}, {"calm": count}).tier for count in (1, 2, 3)]
    assert tiers == ["notify", "notify", "blocked"]


def test_a_window_is_over_when_its_last_millisecond_is() -> None:
    assert [is_over("calm/ann/60/10", now) for now in (659_999, 660_000)] == [False, True]
    assert [is_over(key, 0) for key in ("calm/ann/60/x", "calm/ann/x/10")] == [True, True]


def test_no_rule_allows_another_agents_private_state() -> None:
    policy = Policy(rules=[Rule(name="open", applies_to="*", tier="autonomous")])
    for name in ("state.backup.create", "state.backup.restore"):
        assert decide(policy, CATALOGUE[name], "ann", {"agent": "bob"}).tier == "blocked"
        assert decide(policy, CATALOGUE[name], "ann", {"agent": "ann"}).tier == "approval_required"
        # It is a person's to decide.
        by_operator = decide(policy, CATALOGUE[name], "operator", {"agent": "bob"}, by_operator=True)
        assert by_operator.tier == "approval_required"


async def test_calls_are_counted_in_the_store_and_too_many_ask(world: World) -> None:
    rule = Rule(name="calm", applies_to="state.shared.set", rate=Rate(most=2, seconds=3600), reason="too many")
    world.policy = Policy(rules=[rule])
    async with world.open() as state:
        await state.shared.set("a", 1, expected_version=0)
    async with world.open() as state:
        await state.shared.set("b", 1, expected_version=0)
        explained = await state.call("policy.explain", capability="state.shared.set")
        assert (explained["tier"], explained["rule"], explained["reason"]) == ("approval_required", "calm", "too many")
        with pytest.raises(ApprovalPending):
            await state.shared.set("c", 1, expected_version=0)
    async with world.open("bob") as other:
        await other.shared.set("d", 1, expected_version=0)


async def test_calls_at_the_same_time_are_all_counted(each_world: World) -> None:
    rule = Rule(name="few", applies_to="alerts.send", rate=Rate(most=3, seconds=1 << 40, then="blocked"))
    each_world.policy = Policy(rules=[rule])
    async with each_world.open() as one, each_world.open() as two:
        calls = [state.call("alerts.send", message="help") for state in (one, two) * 4]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in outcomes].count(PolicyDenied) == 5
        [entry] = [each async for each in every_entry(one.gateway.store, RATES)]
        assert entry.value == "8"


async def test_a_call_that_somebody_approves_counts_once(world: World) -> None:
    few = Rate(most=2, seconds=3600, then="blocked")
    rule = Rule(name="few", applies_to="alerts.send", tier="approval_required", rate=few)
    world.policy = Policy(rules=[rule])
    async with world.open() as state:
        for message in ("one", "two"):
            assert (await approved(state, "alerts.send", message=message)).status == "executed"
        with pytest.raises(PolicyDenied):
            await state.call("alerts.send", message="three")


async def test_what_was_approved_is_not_run_against_a_rule_that_forbids_it_since(world: World) -> None:
    world.policy = Policy(rules=[Rule(name="ask", applies_to="alerts.send", tier="approval_required")])
    async with world.open() as state:
        with pytest.raises(ApprovalPending) as pending:
            await state.call("alerts.send", message="help")
    world.policy = Policy(rules=[Rule(name="never", applies_to="alerts.send", tier="blocked")])
    async with world.open() as state:
        row = await decide_approval(state.gateway, pending.value.context["approval_id"], approved=True, by="ada")
        assert (row.status, row.result["error"]) == ("failed", "PolicyDenied")
        assert (await state.gateway.store.usage(ALERTS)).keys == 0


async def test_names_that_look_like_others_put_together_are_counted_apart(world: World) -> None:
    once = Rate(most=1, seconds=3600)
    names = {"r": "x/ann", "r/x": "ann"}
    rules = [Rule(name=name, applies_to="alerts.send", agents=[agent], rate=once) for name, agent in names.items()]
    world.policy = Policy(rules=rules)
    for agent in names.values():
        async with world.open(agent) as state:
            await state.call("alerts.send", message="help")
            with pytest.raises(ApprovalPending):
                await state.call("alerts.send", message="help")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Rate(most=1, seconds=0), "seconds=0"),
        (lambda: Rate(most=1, seconds=60, then=cast("Any", "approval")), "no tier 'approval'"),
        (lambda: Rule(name="calm", applies_to="*", tier=cast("Any", "block")), "approval_required"),
        (
            lambda: Rule(name="calm", applies_to="state.shred.*"),
            "no capability 'state.shred.\\*'; do you mean",
        ),
        (lambda: Rule(name="calm", applies_to="state__shared__set"), "do you mean 'state.shared.set'"),
        (lambda: Rule(name="calm", applies_to="state.shared.*", when={"kye": 1}), "'kye', which is not an input of"),
        (lambda: state_capabilities(only=["state.sesion.*"]), "do you mean 'state.session"),
        (lambda: Policy(rules=[CALM, replace(CALM, rate=Rate(most=9, seconds=60))]), "'calm'; name them apart"),
        (lambda: Rule(name="r", applies_to="*", agents="ann"), r"agents is a list; write \['ann'\]"),
        (lambda: Policy(other_agents={"ann": "bobby"}), r"other_agents\['ann'\] is a list; write"),
        (lambda: state_capabilities(export_roots="/srv/out"), r"export_roots is a list; write \['/srv/out'\]"),
        (lambda: state_capabilities(briefing_roots="/srv/in"), "briefing_roots is a list"),
        (lambda: state_capabilities(webhooks="https://localhost"), "webhooks is a list"),
        (lambda: state_capabilities(webhooks=["https://a.b", "localhost/x"]), "address 2 in webhooks is not an http"),
        (lambda: state_capabilities(only="state.session.*"), "only is a list"),
        (lambda: StateSettings(export_roots=cast("Any", "/srv/out")), "export_roots is a list"),
    ],
)
def test_a_rule_that_could_not_decide_is_refused_where_it_is_made(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        wrong()


async def test_calls_of_a_long_window_are_remembered_until_it_is_over(world: World) -> None:
    month = 30 * 24 * 3600
    world.policy = Policy(rules=[Rule(name="calm", applies_to="state.shared.set", rate=Rate(most=1, seconds=month))])
    clock = ManualClock(month * 1000 * 600)
    async with world.open(clock=clock) as state:
        await state.shared.set("a", 1, expected_version=0)
        clock.advance(world.limits.remembered_ms + 1)
        await sweep_state(state.gateway)
        with pytest.raises(ApprovalPending):
            await state.shared.set("b", 1, expected_version=0)
        clock.advance(month * 1000)
        await sweep_state(state.gateway)
        assert (await state.gateway.store.usage(RATES)).keys == 0
        await state.shared.set("b", 1, expected_version=0)


async def test_what_is_asked_in_one_session_is_not_the_request_of_another(world: World) -> None:
    world.policy = Policy(rules=[Rule(name="ask", applies_to="state.s*", tier="approval_required")])
    async with world.open() as state:
        here, there = await state.with_session(), await state.with_session()
        asked: list[str] = []
        for session in (here, there, there):
            with pytest.raises(ApprovalPending) as pending:
                await session.session.set("k", 1)
            asked.append(pending.value.context["approval_id"])
        assert asked[0] != asked[1] == asked[2]
        await decide_approval(state.gateway, asked[1], approved=True, by="ada")
        scopes = [session_scope(str(each.caller.session_id)) for each in (here, there)]
        assert [(await state.gateway.store.usage(scope)).keys for scope in scopes] == [0, 1]
        joined: set[str] = set()
        for session in (here, there):
            # What all sessions share is the same wherever it is asked.
            with pytest.raises(ApprovalPending) as pending:
                await session.shared.set("k", 1, expected_version=0)
            joined.add(pending.value.context["approval_id"])
        assert len(joined) == 1


async def test_of_many_who_ask_for_the_same_call_at_once_one_does(each_world: World) -> None:
    async with each_world.open(face="mcp") as one, each_world.open(face="mcp") as other:

        async def asked() -> set[str]:
            calls = [state.call("state.backup.create") for state in (one, other) for _ in range(3)]
            told = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in told} == {ApprovalPending}
            return {each.context["approval_id"] for each in told if isinstance(each, ApprovalPending)}

        [first] = await asked()
        await decide_approval(one.gateway, first, approved=False, by="ada")
        [second] = await asked()
        assert first != second
        found = {row["approval_id"]: row["status"] for row in (await one.call("approvals.list"))["approvals"]}
        assert found == {first: "rejected", second: "pending"}


async def test_what_is_blocked_is_refused_audited_and_not_shown(world: World) -> None:
    from helix_agents.capabilities.mcp.tools import tool_definitions

    world.policy = Policy(rules=[Rule(name="never", applies_to="state.shared.delete", tier="blocked")])
    async with world.open() as state:
        with pytest.raises(PolicyDenied) as refused:
            await state.shared.delete("k")
        assert refused.value.recovery[0].capability == "policy.explain"
        await state.gateway.flush()
        [row] = await state.gateway.store.list_audit()
        assert '"status":"failed"' in row.entry
        assert '"rule":"never"' in row.entry
        names = [each["title"] for each in tool_definitions(state.gateway, "ann")]
        assert "state.shared.delete" not in names
        assert len(names) == len(CATALOGUE) - 1


async def test_a_call_is_explained_with_the_inputs_that_it_has_when_they_are_left_out(world: World) -> None:
    rule = Rule(name="full", applies_to="state.briefing.*", when={"detail_level": "summary"}, tier="blocked")
    world.policy = Policy(rules=[rule])
    async with world.open() as state:
        asked = {"capability": "state.briefing.generate"}
        with pytest.raises(PolicyDenied):
            await state.call("state.briefing.generate")
        assert (await state.call("policy.explain", **asked))["tier"] == "blocked"
        detailed = await state.call("policy.explain", **asked, inputs={"detail_level": "detailed"})
        assert detailed["tier"] == "autonomous"


@pytest.mark.parametrize("inputs", ["text", [1], 7])
async def test_inputs_that_are_no_object_are_refused_and_not_judged(world: World, inputs: Any) -> None:
    async with world.open() as state:
        with pytest.raises(InvalidInput):
            await state.call("policy.explain", capability="state.backup.create", inputs=inputs)
