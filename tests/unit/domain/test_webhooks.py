"""What is sent to webhooks, checked by the client library that receivers use."""

import json
import time
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import encode
from helix_agents.domain.runs import RunRecord, RunStatus
from helix_agents.domain.sessions import SessionSummary
from helix_agents.domain.webhooks import (
    DELAYS_MS,
    LARGEST_VALUE_BYTES,
    WebhookEvent,
    claimed,
    event_of,
    is_untold,
    key_of,
    message_of,
    owed,
    put_off,
    signed_headers,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


def _run(status: RunStatus = "completed", **fields: Any) -> RunRecord:
    given: dict[str, Any] = {"told": "running", "started_at": 1_000, "ended_at": 2_500, "turn": 3}
    return RunRecord(run_id="r-1", session_id="s-1", status=status, **given | fields)


def _session(**fields: Any) -> SessionSummary:
    given: dict[str, Any] = {"root_session_id": "s-1", "agent_type": "clerk", "created_at": 0, "updated_at": 0}
    given |= {"step_count": 0, "message_count": 0, "version": 1}
    return SessionSummary(session_id="s-1", status="active", **given | fields)


def _key(secret: str) -> bytes:
    key = key_of(secret)
    assert key is not None
    return key


def test_a_receiver_verifies_what_is_signed_and_nothing_else() -> None:
    body = encode(message_of("turn.completed", _run(output="Grüße"), _session(), []))
    headers = signed_headers([_key(SECRET), _key(OTHER)], "msg_1", int(time.time()), body)
    for secret in (SECRET, OTHER):
        assert Verifier(secret).verify(body, headers)["data"]["output"] == "Grüße"
    for changed in (
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": str(int(time.time()) - 60)},
        {"webhook-signature": "v1,AAAA"},
    ):
        with pytest.raises(WebhookVerificationError):
            Verifier(SECRET).verify(body, headers | changed)
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Verifier("whsec_" + "A" * 32).verify(body, headers)


@pytest.mark.parametrize(
    "text", ["", "secret", "whsec_", "whsec_!!", "whsec_YWJj", "whsec_" + "A" * 88, "WHSEC_" + "A" * 32]
)
def test_what_is_no_secret_has_no_key(text: str) -> None:
    assert key_of(text) is None


def test_a_message_names_its_session_run_and_turn_and_when_the_run_ended() -> None:
    message: Any = message_of("turn.failed", _run("failed", error="no", completion_reason="x"), _session(), [])
    assert (message["type"], message["timestamp"]) == ("turn.failed", "1970-01-01T00:00:02.500Z")
    data = message["data"]
    assert (data["sessionId"], data["runId"], data["turn"], data["status"]) == ("s-1", "r-1", 3, "failed")
    assert (data["error"], data["reason"], "output" in data) == ("no", "x", False)


def test_a_large_output_or_input_is_left_out_and_the_message_says_so() -> None:
    large = "x" * LARGEST_VALUE_BYTES
    message: Any = message_of("turn.completed", _run(output=large), _session(), [])
    assert (message["data"]["output"], message["data"]["outputOmitted"]) == (None, True)
    call = PendingCall(
        tool_call_id="c", kind="approval", session_id="s-1", root_session_id="s-1", run_id="r-1", step_id="1",
        tool_name="pay", input={"text": large}, created_at=9_000, deadline=10_000,
    )  # fmt: skip
    waiting: Any = message_of("calls.waiting", _run("suspended_client_tool"), _session(), [call])
    [told] = waiting["data"]["calls"]
    assert (told["input"], told["inputOmitted"], told["deadline"]) == (None, True, 10_000)
    assert waiting["timestamp"] == "1970-01-01T00:00:09.000Z"
    assert len(json.dumps(waiting)) < 1_000


@pytest.mark.parametrize(
    ("status", "event"),
    [
        ("running", None),
        ("completed", "turn.completed"),
        ("failed", "turn.failed"),
        ("interrupted", "turn.interrupted"),
        ("suspended_client_tool", "calls.waiting"),
        ("suspended_awaiting_children", "calls.waiting"),
        ("suspended_step_partial", "calls.waiting"),
    ],
)
def test_every_status_of_a_run_but_running_is_an_event(status: RunStatus, event: WebhookEvent | None) -> None:
    assert event_of(status) == event
    assert is_untold(_run(status)) == (event is not None)
    assert not is_untold(_run(status, told=None))
    assert not is_untold(_run(status, told=status))
    assert is_untold(_run(status, parent_run_id="above")) == (event == "calls.waiting")


def test_the_id_of_a_delivery_follows_from_webhook_run_and_event() -> None:
    def name(webhook: str = "hook", event: WebhookEvent = "turn.failed", **fields: Any) -> str:
        return owed(_run(**fields), event, webhook, now=5, revision="1").delivery_id

    assert name() == name(told=None)
    assert len({name(), name("other"), name(event="turn.completed")}) == 3
    # A full stop separates the parts of what is signed.
    assert "." not in name()


def test_each_failure_waits_longer_and_at_least_as_long_as_the_receiver_asks() -> None:
    delivery = owed(_run(), "turn.completed", "hook", now=0, revision="1")
    waits: list[int] = []
    for number in range(len(DELAYS_MS) + 2):
        delivery = claimed(delivery, now=0, lease_ms=10, revision=f"c{number}")
        delivery = put_off(delivery, now=0, revision=f"p{number}", error="no", at_least_ms=0, jitter=1.0)
        waits.append(delivery.next_at)
    assert waits == [*DELAYS_MS, DELAYS_MS[-1], DELAYS_MS[-1]]
    first = claimed(owed(_run(), "turn.completed", "hook", now=0, revision="1"), now=0, lease_ms=1, revision="2")
    for asked, waits_for in ((60_000, 60_000), (10**12, DELAYS_MS[-1])):
        assert put_off(first, now=0, revision="3", error="", at_least_ms=asked, jitter=1.0).next_at == waits_for
