"""A sub-agent behind another service: what a parent sees of it, and what reaches it from here."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from helix_agents import (
    Agent,
    AnyAgent,
    ApprovalAnswer,
    Completed,
    Executor,
    Failed,
    HttpRemoteAgentTransport,
    Interrupted,
    ScriptedModel,
    Suspended,
    ToolAnswer,
    remote_agent_tool,
)
from helix_agents.agent.remote_agents import RemoteLimits
from helix_agents.domain.budgets import Budget
from helix_agents.domain.chunks import StreamChunk, SubagentEnd, TextDelta, ToolApprovalRequest, ToolError
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.paging import MAX_LIMIT
from helix_agents.domain.pending import OPEN as OPEN_CALLS
from helix_agents.domain.pending import AnswerAccepted, PendingFilter
from helix_agents.domain.usage import UsageFilter
from helix_agents.engine.remote.stops import OPEN, REMOTE, id_there
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.remote_agents import RemoteSession, RemoteStatus
from helix_agents.server.auth import Principal, bearer_tokens
from helix_agents.server.remote import ON_BEHALF_OF
from tests.server.agents import gate, locate
from tests.server.chain import boss, service, transport, worker
from tests.server.delegating import (
    ask,
    child_of,
    delegated,
    eventually,
    finish,
    only,
    results_of,
    status_at,
    watched_search,
)
from tests.server.live import ANN, TOKENS, LiveServer, bearer
from tests.server.page import Page


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    async with Executor.open("memory://", janitor_seconds=None) as executor:
        yield executor


async def test_its_work_is_seen_here_and_its_result_is_the_calls_result(remote: LiveServer, helix: Executor) -> None:
    start, between, _ = await watched_search(helix, boss(remote.url), user_id="u")
    assert {(each.session_id, each.agent_type, each.parent_tool_call_id) for each in between} == {
        (start.child_session_id, "worker", start.tool_call_id)
    }
    numbers = [each.remote_sequence for each in between]
    assert numbers == sorted(set(numbers), key=lambda number: number or 0)
    (ref,) = await helix._services.store.get_sub_session_refs("s")
    assert (ref.location, ref.status, ref.remote and ref.remote.url) == ("remote", "completed", remote.url)
    child = await helix.sessions.get(ref.sub_session_id)
    assert (child.status, child.parent_session_id, child.user_id) == ("completed", "s", "u")
    assert REMOTE not in child.metadata


async def test_state_and_usage_come_back(remote: LiveServer, helix: Executor) -> None:
    agent = replace(boss(remote.url), budget=Budget(tokens=1_000_000))
    waiting = only(await finish(helix, agent, "remote publish"))
    half = await helix._usage.get_usage_rollup("s")
    await helix.submit_tool_result("s", waiting.tool_call_id, ApprovalAnswer(approved=True))
    run = await helix.resume(agent, "s")
    assert isinstance(await run.result(), Completed)
    assert (await helix.sessions.get(await child_of(helix))).custom_state == {"published": ["r-1"]}
    there = await ask(remote, "GET", f"/sessions/{id_there(await child_of(helix))}/usage")
    whole = await run.usage()
    here = {(each.source_type, each.source_name): each for each in whole.sources}
    for source in there["sources"]:
        assert here[source["sourceType"], source["sourceName"]].calls >= source["calls"]
    assert here["tool", "publish"].calls == 1
    own = there["tokens"]["total"]
    assert own > 0
    assert half.tokens.total < whole.tokens.total
    # The parent asked its model twice; the rest is what the child used, counted once.
    assert whole.tokens.total == own + await tokens_of(helix, "s")
    spent = (await helix.sessions.get("s")).spent
    assert spent is not None
    assert spent.total.tokens == whole.tokens.total


async def tokens_of(helix: Executor, session: str) -> int:
    page = await helix._usage.query_usage(UsageFilter(session_id=session, source_type="tokens"))
    return sum(entry.tokens.total for entry in page.items if entry.tokens is not None)


async def test_a_child_that_fails_there_is_a_failed_call_here(remote: LiveServer, helix: Executor) -> None:
    result = await finish(helix, boss(remote.url), "remote fail & hello")
    assert isinstance(result, Completed)
    assert "You said: hello" in result.output
    refs = await helix._services.store.get_sub_session_refs("s")
    assert {ref.status for ref in refs} == {"failed", "completed"}
    assert [result.code for result in await results_of(helix)] == [None, "sub_agent_failed"]


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_inside_is_given_at_the_root(remote: LiveServer, helix: Executor, approved: bool) -> None:
    agent = boss(remote.url)
    run = await helix.execute(agent, "remote publish", "s")
    chunks = [chunk async for chunk in run.stream()]
    waiting = only(await run.result())
    assert (waiting.tool_name, waiting.input, waiting.kind) == ("publish", {"report_id": "r-1"}, "approval")
    (asked,) = [each for each in chunks if isinstance(each, ToolApprovalRequest)]
    assert (asked.tool_call_id, asked.approval_id) == (waiting.tool_call_id, waiting.approval_id)
    assert (await helix.list_pending(PendingFilter(root_session_id="s"))).items == (waiting,)
    outcome = await helix.submit_tool_result(
        "s", waiting.tool_call_id, ApprovalAnswer(approved=approved), approval_id=waiting.approval_id
    )
    assert isinstance(outcome, AnswerAccepted)
    assert outcome.next == "resume"
    result = await (await helix.resume(agent, "s")).result()
    assert isinstance(result, Completed)
    assert ("published r-1" in result.output) is approved
    assert ("not approved" in result.output) is not approved
    assert (await helix.list_pending(PendingFilter(root_session_id="s"))).items == ()


async def test_a_client_tool_inside_is_answered_at_the_root(remote: LiveServer, helix: Executor) -> None:
    agent = boss(remote.url)
    waiting = only(await finish(helix, agent, "remote locate"))
    assert (waiting.tool_name, waiting.kind) == ("locate", "client_tool")
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    result = await (await helix.resume(agent, "s")).result()
    assert isinstance(result, Completed)
    assert "I was told: I was told: Brest" in result.output


@pytest.fixture(params=["toolu_" + "x" * 58, "call_1"], ids=["long", "short"])
def provider(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """A service whose provider gives its call this id."""
    model = ScriptedModel([reply(calls=[call("locate", {}, id=request.param)]), "It is there."])
    with LiveServer(service(Agent(name="worker", model=model, tools=[locate]))) as live:
        yield live


@pytest.fixture(scope="module")
def root(remote: LiveServer) -> Iterator[LiveServer]:
    """A service whose agent delegates to the worker."""
    with LiveServer(service(boss(remote.url))) as live:
        yield live


@pytest.mark.parametrize("answer", ["approve", "deny", "result"])
def test_what_became_of_a_call_inside_is_shown_by_a_page_that_is_loaded_later(
    root: LiveServer, session_id: str, answer: str
) -> None:
    with root.client() as client:
        page = Page(client, session_id)
        if answer == "result":
            page.say("remote locate").give("locate", "Brest")
        else:
            page.say("remote publish").decide("publish", answer == "approve")
        name = "locate" if answer == "result" else "publish"
        page.post()
        anew = Page(client, session_id, page.snapshot()["messages"])
        told = [(tool["state"], tool.get("output")) for tool in (page.tool(name), anew.tool(name))]
        assert told[0] == told[1]
        assert told[0][0] == ("output-denied" if answer == "deny" else "output-available")


async def test_calls_inside_have_ids_that_every_provider_takes(provider: LiveServer, helix: Executor) -> None:
    agent = boss(provider.url)
    run = await helix.execute(agent, "remote x", "s")
    chunks = [chunk async for chunk in run.stream()]
    waiting = only(await run.result())
    named = {each for chunk in chunks if (each := getattr(chunk, "tool_call_id", None)) is not None}
    assert waiting.tool_call_id in named
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in named)
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)


async def test_an_answer_that_does_not_fit_there_is_asked_for_again(remote: LiveServer, helix: Executor) -> None:
    agent = boss(remote.url)
    waiting = only(await finish(helix, agent, "remote locate"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result={"no": "text"}))
    again = only(await (await helix.resume(agent, "s")).result())
    assert again.tool_call_id == waiting.tool_call_id
    assert "string" in (again.reason or "")
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)


async def test_of_several_calls_each_goes_on_with_its_answer(remote: LiveServer, helix: Executor) -> None:
    agent = boss(remote.url)
    result = await finish(helix, agent, "remote both & locate")
    assert isinstance(result, Suspended)
    assert sorted(call.tool_name for call in result.pending) == ["locate", "locate", "publish"]
    answers = {"publish": ApprovalAnswer(approved=True), "locate": ToolAnswer(result="Brest")}
    for place, waiting in enumerate(result.pending):
        await helix.submit_tool_result("s", waiting.tool_call_id, answers[waiting.tool_name])
        result = await (await helix.resume(agent, "s")).result()
        assert isinstance(result, Suspended if place < 2 else Completed)
    assert isinstance(result, Completed)
    assert "published r-1" in result.output


async def test_a_question_that_times_out_there_times_out_here(remote: LiveServer, helix: Executor) -> None:
    agent = boss(remote.url)
    waiting = only(await finish(helix, agent, "remote glance"))
    assert waiting.deadline is not None

    came_to: list[Any] = []

    async def goes_on() -> Any:
        # The two services look at the clock one after the other: until both have, the question waits again.
        await helix._services.store.expire_pending()
        if await helix.can_resume(agent, "s") is None:
            came_to.append(await (await helix.resume(agent, "s")).result())
        return came_to and isinstance(came_to[-1], Completed)

    await eventually(goes_on)
    assert "Nobody answered this call in time" in came_to[-1].output


async def test_a_user_who_goes_on_lets_the_child_go(remote: LiveServer, helix: Executor) -> None:
    agent = boss(remote.url)
    only(await finish(helix, agent, "remote locate"))
    assert isinstance(await finish(helix, agent, "never mind"), Completed)
    child = await child_of(helix)
    assert (await status_at(remote, child))["runStatus"] == "interrupted"
    assert REMOTE not in (await helix.sessions.get(child)).metadata


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_reaches_a_child_at_work(remote: LiveServer, helix: Executor, kind: str) -> None:
    agent = boss(remote.url)
    gate.shut(after=2)
    run = await helix.execute(agent, "remote long story", "s")
    async for chunk in run.stream():
        if chunk.remote_sequence is not None and isinstance(chunk, TextDelta):
            break
    await getattr(helix, kind)("s", "enough")
    result = await run.result()
    assert isinstance(result, Interrupted if kind == "interrupt" else Failed)
    child = await child_of(helix)
    status = await status_at(remote, child)
    assert status["runStatus"] == ("interrupted" if kind == "interrupt" else "failed")
    assert REMOTE not in (await helix.sessions.get(child)).metadata


class SlowToLook(HttpRemoteAgentTransport):
    """Takes its time to find out whether the child is there, which is the first thing a parent wants to know."""

    looking: asyncio.Event

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        if not self.looking.is_set():
            self.looking.set()
            await asyncio.sleep(60)
        return await super().status(session)


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_child_that_is_stopped_before_it_was_begun_is_not_begun(
    remote: LiveServer, helix: Executor, kind: str
) -> None:
    slow = SlowToLook(remote.url, token=ANN)
    slow.looking = asyncio.Event()
    run = await helix.execute(boss(slow, token=None), "remote search", "s")
    await slow.looking.wait()
    await getattr(helix, kind)("s", "enough")
    assert isinstance(await run.result(), Interrupted if kind == "interrupt" else Failed)
    there = RemoteSession(session_id=id_there(await child_of(helix)), agent="worker")
    assert await slow.status(there) is None


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_reaches_a_child_that_waits(remote: LiveServer, kind: str) -> None:
    async with Executor.open("memory://", janitor_seconds=60) as helix:
        only(await finish(helix, boss(remote.url), "remote locate"))
        await getattr(helix, kind)("s", "enough")
        child = await child_of(helix)

        async def is_paid() -> bool:
            return REMOTE not in (await helix.sessions.get(child)).metadata

        await eventually(is_paid)
        status = await status_at(remote, child)
        assert status["runStatus"] == ("interrupted" if kind == "interrupt" else "failed")
        assert status["pending"] == []


async def test_a_child_that_takes_too_long_is_stopped(remote: LiveServer, helix: Executor) -> None:
    gate.shut(after=2)
    assert isinstance(await finish(helix, boss(remote.url, timeout=0.8), "remote long story"), Completed)
    assert (await delegated(helix)).code == "sub_agent_timeout"
    assert (await status_at(remote, await child_of(helix)))["runStatus"] == "interrupted"


async def test_a_wrong_token_is_a_failed_call(
    remote: LiveServer, helix: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(await finish(helix, boss(remote.url, token="wrong"), "remote search"), Completed)
    told = await delegated(helix)
    assert (told.code, told.error) == ("sub_agent_dispatch_failed", True)
    assert "401 unauthenticated" in str(told.content)
    assert any(getattr(record, "event", "") == "subagent.dispatch_failed" for record in caplog.records)
    assert REMOTE not in (await helix.sessions.get(await child_of(helix))).metadata


async def test_an_unknown_agent_is_a_failed_call(remote: LiveServer, helix: Executor) -> None:
    tool = remote_agent_tool(transport(remote.url), "nobody", name="worker", description="Nobody.")
    agent = Agent(
        name="boss", model=ScriptedModel([reply(calls=[call(tool.name, {"message": "x"})]), "so be it"]), tools=[tool]
    )
    assert isinstance(await finish(helix, agent, "go"), Completed)
    told = await delegated(helix)
    assert told.code == "sub_agent_dispatch_failed"
    assert "unknown_agent" in str(told.content)


async def test_a_session_that_is_gone_there_is_lost(remote: LiveServer, helix: Executor) -> None:
    agent = boss(remote.url)
    waiting = only(await finish(helix, agent, "remote locate"))
    child = await child_of(helix)
    await ask(remote, "DELETE", f"/sessions/{id_there(child)}")
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    told = await delegated(helix)
    assert told.code == "framework_subagent_lost"
    assert "not_found" in str(told.content)
    (ref,) = await helix._services.store.get_sub_session_refs("s")
    assert ref.status == "failed"


async def test_a_service_that_does_not_answer_is_lost_and_owed_a_stop(helix: Executor) -> None:
    agent = boss("http://127.0.0.1:9", lost_after=0.2)
    assert isinstance(await finish(helix, agent, "remote search"), Completed)
    told = await delegated(helix)
    assert told.code == "framework_subagent_lost"
    assert "status_unreachable" in str(told.content)
    assert (await helix.sessions.get(await child_of(helix))).metadata[REMOTE] == OPEN


class Unheard(HttpRemoteAgentTransport):
    """A way to a service on which every stream is lost."""

    def stream(self, session: RemoteSession, *, after: int) -> AsyncGenerator[StreamChunk, None]:
        return HttpRemoteAgentTransport("http://127.0.0.1:9").stream(session, after=after)


async def test_a_child_that_can_be_asked_but_not_heard_is_waited_for(remote: LiveServer, helix: Executor) -> None:
    agent = boss(Unheard(remote.url, token=ANN), token=None, lost_after=0.2)
    assert isinstance(await finish(helix, agent, "remote search"), Completed)
    assert "page 2 about tides" in str((await delegated(helix)).content)
    waiting = only(await finish(helix, agent, "remote locate"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="54 N"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert "54 N" in str((await delegated(helix)).content)


class GivingUp(HttpRemoteAgentTransport):
    """A way that waits for something which was cancelled."""

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        raise asyncio.CancelledError


async def test_a_way_that_cancels_itself_fails_the_run_with_a_reason(remote: LiveServer, helix: Executor) -> None:
    result = await finish(helix, boss(GivingUp(remote.url), token=None), "remote search")
    assert isinstance(result, Failed)
    assert "cancelled itself" in result.error


class Leaving(HttpRemoteAgentTransport):
    """A way to a service that goes away."""

    is_gone = False

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        way = HttpRemoteAgentTransport("http://127.0.0.1:9") if self.is_gone else super()
        return await way.status(session)


async def test_an_answer_to_a_child_that_is_lost_keeps_nobody_going(remote: LiveServer, helix: Executor) -> None:
    way = Leaving(remote.url, token=ANN)
    agent = boss(way, token=None, lost_after=0.1)
    waiting = only(await finish(helix, agent, "remote locate"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    way.is_gone = True
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert (await delegated(helix)).code == "framework_subagent_lost"
    # Something that looks answered would keep the next run that has to wait going round.
    assert (await helix.sessions.get("s")).pending_client_tool_calls == {}


@pytest.fixture
def crowd() -> Iterator[LiveServer]:
    """A service whose agent asks for more at once than one page lists."""
    calls = [call("locate", {}, id=f"call_{number}") for number in range(MAX_LIMIT + 1)]
    model = ScriptedModel([reply(calls=calls), "All are there."])
    with LiveServer(service(Agent(name="worker", model=model, tools=[locate]))) as live:
        yield live


async def test_all_answers_to_a_child_that_is_lost_are_used_up_however_many(crowd: LiveServer, helix: Executor) -> None:
    way = Leaving(crowd.url, token=ANN)
    agent = boss(way, token=None, lost_after=0.1, limits=RemoteLimits(pending=MAX_LIMIT + 1))
    result = await finish(helix, agent, "remote x")
    assert isinstance(result, Suspended)
    for waiting in result.pending:
        await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    way.is_gone = True
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert (await helix.list_pending(PendingFilter(root_session_id="s", states=tuple(OPEN_CALLS)))).items == ()


class ReadOnly(HttpRemoteAgentTransport):
    """A way to a service that takes no answers back."""

    @property
    def routes_answers(self) -> bool:
        return False


async def test_where_answers_cannot_be_routed_a_call_that_waits_fails(remote: LiveServer, helix: Executor) -> None:
    agent = boss(ReadOnly(remote.url, token="token-of-ann"), token=None)
    assert isinstance(await finish(helix, agent, "remote locate"), Completed)
    assert (await delegated(helix)).code == "client-tool-unsupported"
    status = await status_at(remote, await child_of(helix))
    assert status["runStatus"] == "failed"


@pytest.fixture
def believing() -> Iterator[LiveServer]:
    """A service that believes its caller for whom it asks."""

    def on_behalf(request: Any) -> Principal | None:
        known = bearer_tokens(TOKENS)(request)
        return known and Principal(user_id=request.headers.get(ON_BEHALF_OF, "the service"))

    with LiveServer(service(worker(), authenticate=on_behalf)) as live:
        yield live


async def test_the_user_is_passed_on_only_by_a_transport_that_is_told_to(
    believing: LiveServer, helix: Executor
) -> None:
    for session, passes, owner in (("quiet", False, "the service"), ("open", True, "zoe")):
        agent = boss(transport(believing.url, pass_user=passes), token=None)
        assert isinstance(
            await (await helix.execute(agent, "remote hello", session, user_id="zoe")).result(), Completed
        )
        child = await child_of(helix, session)
        async with httpx2.AsyncClient(base_url=believing.url, headers=bearer(ANN)) as client:
            path = f"/sessions/{id_there(child)}"
            codes = {
                who: (await client.get(path, headers={ON_BEHALF_OF: who})).status_code for who in ("zoe", "the service")
            }
        assert {who for who, code in codes.items() if code == 200} == {owner}


def calls_itself(request: Any) -> Any:
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return f"< {last.content} >"
    return reply(calls=[call("subagent__worker", {"message": "go on"})])


@pytest.fixture
def endless() -> Iterator[AnyAgent]:
    """An agent whose service has an agent that delegates to itself."""
    found: list[LiveServer] = []

    class Itself(HttpRemoteAgentTransport):
        @property
        def url(self) -> str:
            return found[0].url

    tool = remote_agent_tool(Itself("http://later", token=ANN), "worker", description="Itself.")
    with LiveServer(service(Agent(name="worker", model=ScriptedModel(calls_itself), tools=[tool]))) as live:
        found.append(live)
        yield Agent(name="boss", model=ScriptedModel(calls_itself), tools=[tool])


async def test_services_that_delegate_to_each_other_come_to_an_end(endless: AnyAgent, helix: Executor) -> None:
    """Each tells the next how deep it stands."""
    result = await finish(helix, endless, "go")
    assert isinstance(result, Completed)
    assert "sub-agents may be nested at most 8 deep" in result.output
    assert result.output.count("<") == 9


@pytest.mark.parametrize("url", ["ftp://here", "not a url", "http://user:secret@host", "/path"])
def test_an_address_has_to_be_one(url: str) -> None:
    with pytest.raises(DefinitionError):
        remote_agent_tool(url, "worker", description="Nowhere.")


@pytest.mark.parametrize("value", ["a-secret\n", "a-sécret", "a-secret ", "a\x00secret"])
def test_what_no_header_can_carry_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(DefinitionError, match="authorization") as by_token:
        remote_agent_tool("http://h", "worker", description="d", token=value)
    with pytest.raises(DefinitionError, match="x-key") as by_header:
        remote_agent_tool("http://h", "worker", description="d", headers={"X-Key": value})
    assert "secret" not in f"{by_token.value}{by_header.value}"


@pytest.mark.parametrize("made", [{"authorization": "Bearer a-secret\n"}, OSError("a-secret of the token service")])
async def test_headers_that_cannot_be_made_lose_the_child_and_are_not_told(
    remote: LiveServer, helix: Executor, made: dict[str, str] | OSError
) -> None:
    async def headers() -> dict[str, str]:
        if isinstance(made, OSError):
            raise made
        return made

    way = transport(remote.url, token=None, headers=headers)
    assert isinstance(await finish(helix, boss(way, token=None, lost_after=0.1), "remote search"), Completed)
    told = await delegated(helix)
    assert (told.code, "secret" in str(told.content)) == ("framework_subagent_lost", False)


async def test_headers_are_made_anew_for_every_request(remote: LiveServer, helix: Executor) -> None:
    made: list[int] = []

    async def headers() -> dict[str, str]:
        made.append(1)
        if len(made) == 2:
            raise OSError("the token service is away for a moment")
        return {"Authorization": f"Bearer {ANN}"}

    way = transport(remote.url, token=None, headers=headers)
    assert isinstance(await finish(helix, boss(way, token=None), "remote search"), Completed)
    assert not (await delegated(helix)).error
    assert len(made) > 3


def test_tools_are_named_like_those_of_local_agents() -> None:
    assert remote_agent_tool("http://h", "worker", description="d").name == "subagent__worker"
    assert remote_agent_tool("http://h", "worker", name="other", description="d").name == "subagent__other"
    with pytest.raises(DefinitionError, match="token"):
        remote_agent_tool(transport("http://h"), "worker", description="d", token="t")


async def test_a_failed_start_is_told_as_an_error_chunk(helix: Executor) -> None:
    run = await helix.execute(boss("http://127.0.0.1:9", lost_after=0.1), "remote search", "s")
    chunks = [chunk async for chunk in run.stream()]
    assert [chunk.code for chunk in chunks if isinstance(chunk, ToolError)] == ["framework_subagent_lost"]
    assert [chunk.status for chunk in chunks if isinstance(chunk, SubagentEnd)] == ["failed"]
