"""What is known of a tool that must not run twice, after each thing that can happen to it."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.effects import (
    BeginEffect,
    Effect,
    EffectBegun,
    EffectBusy,
    EffectFinished,
    EffectLost,
    EffectRecorded,
    EffectUnknown,
    begin,
    begun,
    finish,
    renew,
)
from helix_agents.domain.errors import InvalidWriteError
from helix_agents.domain.runs import Fence

NOW = 1_000


def entry(**fields: Any) -> Effect:
    settings: dict[str, Any] = {"state": "intent", "owner": "one", "lease_expires_at": NOW + 1, **fields}
    return Effect(
        session_id="s-1", tool_call_id="c-1", tool_name="pay", idempotency_key="key", begun_at=900, **settings
    )


def request(owner: str = "one", **fields: Any) -> BeginEffect:
    return BeginEffect(
        session_id="s-1",
        fence=Fence(run_id="r-1"),
        tool_call_id="c-1",
        tool_name="pay",
        idempotency_key="another key",
        owner=owner,
        lease_ms=500,
        **fields,
    )


def test_the_first_announcement_stores_an_intent():
    intent = Effect(
        session_id="s-1",
        tool_call_id="c-1",
        tool_name="pay",
        idempotency_key="another key",
        state="intent",
        owner="one",
        lease_expires_at=NOW + 500,
        begun_at=NOW,
    )
    assert begin(None, request(), NOW) == (intent, EffectBegun(effect=intent))


@pytest.mark.parametrize("rerun", [False, True])
@pytest.mark.parametrize("owner", ["one", "two"])
def test_a_finished_tool_gives_its_result_to_everybody(owner: str, rerun: bool):
    done = entry(state="done", result=7)
    assert begin(done, request(owner, rerun=rerun), NOW) == (None, EffectFinished(effect=done))


@pytest.mark.parametrize("lease", [NOW + 1, NOW - 1], ids=["alive", "run out"])
def test_its_own_owner_begins_again_whatever_the_lease(lease: int):
    renewed = entry(lease_expires_at=NOW + 500)
    assert begin(entry(lease_expires_at=lease), request("one"), NOW) == (renewed, EffectBegun(effect=renewed))


@pytest.mark.parametrize("rerun", [False, True])
def test_another_owner_waits_while_the_lease_is_alive(rerun: bool):
    assert begin(entry(), request("two", rerun=rerun), NOW) == (None, EffectBusy(effect=entry()))


def test_an_intent_whose_lease_ran_out_becomes_unknown():
    unknown = entry(lease_expires_at=NOW, state="unknown")
    assert begin(entry(lease_expires_at=NOW), request("two"), NOW) == (unknown, EffectUnknown(effect=unknown))


@pytest.mark.parametrize("owner", ["one", "two"])
def test_an_unknown_outcome_stays_unknown(owner: str):
    unknown = entry(state="unknown")
    assert begin(unknown, request(owner), NOW) == (None, EffectUnknown(effect=unknown))


@pytest.mark.parametrize("state", ["unknown", "intent"])
def test_a_rerun_begins_again_under_the_same_idempotency_key(state: str):
    row, outcome = begin(entry(state=state, lease_expires_at=NOW), request("two", rerun=True), NOW)
    expected = replace(entry(owner="two", lease_expires_at=NOW + 500), begun_at=NOW)
    assert (row, outcome) == (expected, EffectBegun(effect=expected))
    assert expected.idempotency_key == "key"


def test_the_owner_records_the_result_once():
    done = entry(state="done", result={"paid": True}, finished_at=NOW)
    assert finish(entry(), "one", {"paid": True}, NOW) == (done, EffectRecorded(effect=done))
    assert finish(done, "one", "again", NOW + 1) == (None, EffectRecorded(effect=done))


def test_a_result_of_an_unknown_outcome_is_kept_as_late():
    late = entry(state="unknown", late_result=7)
    assert finish(entry(state="unknown"), "one", 7, NOW) == (late, EffectLost(effect=late))


@pytest.mark.parametrize("state", ["intent", "done"])
def test_a_result_of_somebody_else_is_not_stored(state: str):
    taken = entry(state=state, owner="two")
    assert finish(taken, "one", 7, NOW) == (None, EffectLost(effect=taken))


def test_the_owner_prolongs_its_lease():
    renewed = entry(lease_expires_at=NOW + 500)
    assert renew(entry(lease_expires_at=NOW - 1), "one", 500, NOW) == (renewed, EffectRecorded(effect=renewed))


@pytest.mark.parametrize("lost", [entry(owner="two"), entry(state="unknown"), entry(state="done")])
def test_what_is_no_longer_its_own_intent_cannot_be_prolonged(lost: Effect):
    assert renew(lost, "one", 500, NOW) == (None, EffectLost(effect=lost))


def test_what_was_never_begun_cannot_be_finished():
    assert begun(entry(), "s-1", "c-1") == entry()
    with pytest.raises(InvalidWriteError, match="no effect was started"):
        begun(None, "s-1", "c-1")
