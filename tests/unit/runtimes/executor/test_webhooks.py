"""How webhooks are configured, what is refused, and one message from the executor to a receiver that verifies it."""

import sys
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from helix_agents import Agent, Executor, ScriptedModel, Webhook
from helix_agents.domain.errors import DefinitionError, InvalidInputError, MissingExtraError
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.receiver import Receiver

URL = "https://example.com/hook?token=hidden"
GREETER = Agent(name="greeter", model=ScriptedModel(lambda _: "Hello."))


async def test_a_receiver_verifies_the_message_with_its_own_library() -> None:
    async with Receiver() as receiver:
        webhook = Webhook(receiver.url, secret=[SECRET, "whsec_" + "A" * 32])
        async with Executor.open("memory://verified", agents=[GREETER], webhooks=[webhook]) as helix:
            await (await helix.execute(GREETER, "Hi", "s-1")).result()
            [told] = await receiver.until(1)
        verified: Any = Verifier(SECRET).verify(told.body, told.headers)
        assert verified["data"]["sessionId"] == "s-1"
        assert told.headers["content-type"] == "application/json"


def test_a_webhook_shows_no_secret_and_is_known_by_its_host_and_path() -> None:
    webhook = Webhook(URL, secret=SECRET, give_up_after=timedelta(days=1))
    assert (webhook.name, webhook.give_up_ms, webhook.timeout_ms) == ("example.com/hook", 86_400_000, 15_000)
    assert SECRET not in repr(webhook)
    assert Webhook(URL, secret=SECRET, name="mine").name == "mine"


def test_a_token_in_the_path_is_not_part_of_the_name() -> None:
    names = [
        Webhook(f"https://example.com/services/v2/{token}/run", secret=SECRET).name for token in ("T0KEN", "T1KEN")
    ]
    assert all(each.startswith("example.com/services/v2/~") and each.endswith("/run") for each in names)
    assert names[0] != names[1]
    assert "KEN" not in "".join(names)


@pytest.mark.parametrize(
    ("url", "fields", "says"),
    [
        ("ftp://example.com", {}, "not an http or https address"),
        ("example.com/hook", {}, "not an http or https address"),
        ("https://", {}, "not an http or https address"),
        ("https://example.com:x/hook", {}, "not an http or https address"),
        ("https://exa mple.com/hook", {}, "not an http or https address"),
        ("https://example.com/\n", {}, "not an http or https address"),
        (7, {}, "not an http or https address"),
        ("https://ann:pass@example.com/hook", {}, "has credentials or a fragment"),
        ("https://example.com/hook#part", {}, "has credentials or a fragment"),
        (URL, {"secret": "hunter2"}, "its secret is not 'whsec_'"),
        (URL, {"secret": []}, "its secret is not 'whsec_'"),
        (URL, {"secret": None}, "its secret is not 'whsec_'"),
        (URL, {"events": ["turn.ended"]}, "there is no event 'turn.ended'; there are turn.completed"),
        (URL, {"events": "turn.failed"}, "is not a list of events"),
        (URL, {"events": []}, "is not a list of events"),
        (URL, {"timeout": 0}, "timeout=0 is not a duration"),
        (URL, {"give_up_after": "soon"}, "give_up_after='soon' is not a duration"),
        (URL, {"name": " x"}, "Give it another name"),
    ],
)
def test_what_cannot_be_a_webhook_is_refused_in_a_sentence_without_its_secrets(
    url: Any, fields: dict[str, Any], says: str
) -> None:
    given: dict[str, Any] = {"secret": SECRET} | fields
    with pytest.raises(DefinitionError) as refused:
        Webhook(url, **given)
    assert says in str(refused.value)
    for hidden in ("hidden", "hunter2", "pass@"):
        assert hidden not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Webhook(URL, secret=SECRET), "is one webhook, not a list"),
        ([URL], "a str in webhooks is not a Webhook"),
        ([Webhook(URL, secret=SECRET)] * 2, "two webhooks are called 'example.com/hook'"),
    ],
)
async def test_an_executor_refuses_what_is_not_a_list_of_different_webhooks(given: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        async with Executor.open("memory://refused", webhooks=given):
            pass


async def test_a_missing_client_is_told_when_the_executor_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    async with Executor.open("memory://without"):
        pass
    with pytest.raises(MissingExtraError, match=r"pip install 'helix-agents\[webhooks\]'"):
        async with Executor.open("memory://without", webhooks=[Webhook(URL, secret=SECRET)]):
            pass


@pytest.mark.parametrize("states", ["given_up", ["lost"], [None]])
async def test_deliveries_in_a_state_that_does_not_exist_are_not_just_none(states: Any) -> None:
    async with Executor.open("memory://states") as helix:
        with pytest.raises(InvalidInputError, match="owed, delivered, dropped, given_up"):
            await helix.webhooks.list(states=states)
