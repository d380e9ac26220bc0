"""The console in a real browser, on a real server: what operators see, do, and are not let do."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

from helix_agents import Agent, Handoff, Image, ScriptedModel, ToolContext, ask_human, tool
from helix_agents.domain.errors import ModelRefusedError
from helix_agents.domain.messages import Source
from helix_agents.llm.scripted import call, provider_call, reply
from helix_agents.ports.llm import ModelRequest
from helix_agents.server.console import FILES, PAGE
from tests.server.agents import agents, gate, order_of, results_since_the_user
from tests.server.live import ANN, BEN, OPS, LiveServer, agent_server, wait_until
from tests.server.test_executor_routes import approval_of, settled, start

pytestmark = pytest.mark.may_block("a browser is driven from the test's own thread")

HOSTILE = (
    '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1"><svg onload="window.hacked = 1">'
    '<a href="javascript:window.hacked = 1">click</a><iframe srcdoc="x"></iframe>"></textarea><style>*{display:none}'
)
TURNED = "\u202egnp.exe"
"""Shown as it is, this would read `exe.png`."""


SEEN = """state => {
  Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Kept(BaseModel):
    note: str = HOSTILE


@tool
async def dig(ctx: ToolContext[Kept], where: str) -> dict[str, str]:
    """Dig."""
    return {HOSTILE: where}


@tool(require_approval=True)
async def bury(where: str) -> str:
    """Bury."""
    return where


def mean(request: ModelRequest) -> Any:
    if order_of(request) == "break":
        return ModelRefusedError("scripted", HOSTILE)
    if results_since_the_user(request):
        calls = [
            call("bury", {"where": HOSTILE + TURNED}),
            call("ask_human", {"question": HOSTILE, "options": [HOSTILE]}),
        ]
        return reply(HOSTILE + TURNED, thinking=HOSTILE, calls=calls)
    found = [provider_call("web_search", {"query": HOSTILE}, result=[HOSTILE])]
    sources = [Source(url=f"https://sea.example/{HOSTILE}", title=HOSTILE)]
    return reply(HOSTILE, calls=[call("dig", {"where": HOSTILE})], provider_calls=found, sources=sources)


villain = Agent(name="villain", model=ScriptedModel(mean), tools=[dig, bury, ask_human()], state=Kept)


@tool
async def see() -> list[str | Image]:
    """See."""
    return ["The moon:", Image.of(b"moon" * 200, "image/png", "moon.png")]


eye = Agent(name="eye", model=ScriptedModel([call("see"), "Seen."]), tools=[see])
guide = Agent(
    name="guide",
    model=ScriptedModel([call("handoff__eye", {"reason": "to see"})]),
    handoffs=[Handoff("eye", description="Sees.")],
)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    """The server of these tests, below a path of another application."""
    server = agent_server(console=True, executor={"agents": [*agents, villain, eye, guide], "janitor_seconds": None})
    app = Starlette(routes=[Mount("/agents", server)], lifespan=server.lifespan)
    with LiveServer(app) as live:
        live.app = server
        yield live


@pytest.fixture
def ann(live: LiveServer) -> Iterator[httpx2.Client]:
    with live.client(ANN) as client:
        client.base_url = f"{live.url}/agents"
        yield client
    gate.open()


@pytest.fixture
def open_console(browser, live: LiveServer) -> Iterator[Callable[..., Any]]:
    """One more tab of the console; nothing that it meets may be an error of its own."""
    tabs: list[Any] = []
    complaints: list[str] = []

    def open_(place: str = "", token: str | None = ANN, url: str = f"{live.url}/agents") -> Any:
        context = browser.new_context()
        context.set_default_timeout(15_000)
        if token is not None:
            context.add_init_script(f"sessionStorage.setItem('helix.token', '{token}')")
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Security Policy" in said.text else None)
        tabs.append(context)
        page.goto(f"{url}/console{place}")
        return page

    yield open_
    for tab in tabs:
        tab.close()
    assert complaints == []


def said(page) -> list[str]:
    return page.locator(".message[data-role=assistant] > .text").all_text_contents()


def test_a_conversation_is_found_opened_read_as_it_is_written_and_refreshed(
    live: LiveServer, ann: httpx2.Client, open_console
) -> None:
    gate.shut(8)
    start(ann, "tale/1", "long tale", tags=["evening"])
    page = open_console("/#/sessions?tag=evening")
    page.locator("a.row", has_text="tale/1").click()
    page.locator(".status[data-status=running]").wait_for()
    page.get_by_text("You said: long").wait_for()
    [before] = said(page)

    page.reload()
    page.get_by_text("You said: long").wait_for()
    [after] = said(page)
    assert after.startswith(before)

    # A tab that nobody sees takes no place on the server, and goes on where it was.
    page.evaluate(SEEN, "hidden")
    wait_until(lambda: live.app.open_streams == 0)
    gate.open()
    settled(ann, "tale/1")
    assert said(page) == [after]
    page.evaluate(SEEN, "visible")
    page.locator(".title .status[data-status=completed]").wait_for()
    page.locator(".writing").wait_for(state="detached")
    assert said(page) == ["You said: long tale. " + "And so on. " * 20]
    assert page.locator(".message[data-role=user] .text").all_text_contents() == ["long tale"]


def test_an_approval_from_the_inbox_lets_the_conversation_go_on(ann: httpx2.Client, open_console) -> None:
    start(ann, "approved", "delegate")
    settled(ann, "approved")
    page = open_console("#/sessions/approved")
    page.locator("details.tool[data-state=waiting]", has_text="helper").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("i")
    card = page.locator(".decision", has_text="approved")
    card.get_by_role("button", name="Edit input…").click()
    card.get_by_role("textbox").fill('{"report_id": ')
    card.get_by_role("button", name="Approve with this input").click()
    card.get_by_text("This is not valid JSON").wait_for()
    card.get_by_role("textbox").fill('{"report_id": 7}')
    card.get_by_role("button", name="Approve with this input").click()
    card.get_by_text("report_id").last.wait_for()
    assert settled(ann, "approved")["awaitingClientTool"] is True
    card.get_by_role("textbox").fill('{"report_id": "r-edited"}')
    card.get_by_role("button", name="Approve with this input").click()
    card.get_by_text("Approved.").wait_for()
    card.get_by_role("link", name="approved").click()

    page.locator(".title .status[data-status=completed]").wait_for()
    page.locator("details.tool", has_text="helper").locator("summary").first.click()
    below = page.locator(".nested")
    below.locator("details.tool summary", has_text="publish").click()
    below.get_by_text("published r-edited").first.wait_for()

    # What was answered waits no longer.
    page.get_by_role("link", name="Runs").click()
    page.locator("summary .status[data-status=completed]").wait_for()
    assert page.locator("summary .status").all_text_contents() == ["completed", "waited"]


def test_a_turn_in_which_several_agents_worked_tells_what_each_of_them_used(ann: httpx2.Client, open_console) -> None:
    start(ann, "led", "look", agentType="guide")
    settled(ann, "led")
    page = open_console("#/sessions/led/runs")
    page.locator("summary.row").click()
    page.get_by_text("eye: scripted 1 call").wait_for()
    page.get_by_text("guide: scripted 1 call").wait_for()


def test_a_decision_that_somebody_else_made_meanwhile_is_told_and_stands(ann: httpx2.Client, open_console) -> None:
    start(ann, "contested", "publish")
    [waiting] = settled(ann, "contested")["pending"]
    page = open_console("#/inbox")
    card = page.locator(".decision", has_text="contested")
    card.get_by_role("button", name="Deny…").click()
    card.get_by_role("textbox").fill("not today")
    theirs = ann.post("/submit-tool-result", json=approval_of(waiting, "contested")).json()
    assert theirs["outcome"] == "accepted"
    # Whether its own click or a look at the list comes first, the card says the same.
    with contextlib.suppress(Exception):
        card.get_by_role("button", name="Deny", exact=True).click(timeout=2_000)
    card.get_by_text("Somebody else decided").wait_for()
    ann.post("/resume", json={"sessionId": "contested"})
    assert "published r-1" in settled(ann, "contested")["output"]


def test_messages_that_wait_for_their_turn_are_shown_and_can_be_taken_back(ann: httpx2.Client, open_console) -> None:
    start(ann, "queue", "publish")
    settled(ann, "queue")
    for name in ("first", HOSTILE):
        message = {"id": name[:9], "role": "user", "parts": [{"type": "text", "text": f"{name} of them"}]}
        body = {"id": "queue", "message": message, "ifRunning": "enqueue"}
        with ann.stream("POST", "/chat", json=body) as answer:
            assert answer.status_code == 200
    page = open_console("#/sessions/queue")
    page.get_by_text("2 messages wait").wait_for()
    first = page.locator(".queued", has_text="first of them")
    assert first.locator("small > time").count() == 1
    page.set_viewport_size({"width": 375, "height": 700})
    # The page draws its queue anew now and then.
    wait_until(lambda: (box := first.locator("p").bounding_box()) is not None and box["width"] > 250)
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") == 375)
    first.get_by_role("button", name="Give to the turn").click()
    first.get_by_text("for the running turn").wait_for()
    assert [turn["steers"] for turn in ann.get("/sessions/queue/queue").json()["items"]] == [True, False]
    first.get_by_role("button", name="Answer later").click()
    first.get_by_text("for a turn of its own").wait_for()
    first.get_by_role("button", name="Take back").click()
    page.get_by_text("1 message waits").wait_for()
    page.locator(".queued", has_text=HOSTILE).wait_for()
    assert page.evaluate("window.hacked") is None
    [left] = ann.get("/sessions/queue/queue").json()["items"]
    assert left["messages"][0]["content"] == f"{HOSTILE} of them"


def test_what_models_and_users_write_is_text_wherever_it_is_shown(ann: httpx2.Client, open_console) -> None:
    place = f"mean {HOSTILE[:60]}"
    asked = {"agentType": "villain", "sessionId": place, "message": HOSTILE, "tags": [HOSTILE[:90]]}
    assert ann.post("/start", json=asked).status_code == 200
    settled(ann, place)
    ann.post("/start", json={"agentType": "villain", "sessionId": "mean fate", "message": "break"})
    settled(ann, "mean fate")

    def is_harmless(page, shown: str = HOSTILE) -> None:
        page.locator("main").get_by_text(shown).locator("visible=true").first.wait_for()
        assert page.evaluate("window.hacked") is None
        made = "script, img, svg, iframe, style, a:not([href^='#']), [onerror], [onload]"
        assert page.locator(f"main :is({made})").count() == 0

    page = open_console("#/sessions")
    is_harmless(page, HOSTILE[:90])
    page.locator("a.row", has_text=place).click()
    page.locator(".decision").nth(1).wait_for()
    page.locator(".message .text").nth(2).wait_for(state="attached")
    for folded in page.locator("main summary").all():
        folded.click()
    is_harmless(page)
    assert page.locator(".message .text", has_text=HOSTILE).count() >= 3
    assert page.locator(".tool", has_text="web_search").locator(".chip", has_text="at the provider").count() == 1
    assert page.locator(".attached", has_text="https://sea.example/").count() == 1
    # What nobody would see, or what turns the words around it, is spelt out: in words, and in what is decided on.
    assert page.locator(".message .text", has_text="⟨U+202E⟩gnp.exe").count() == 1
    assert page.locator(".decision .json", has_text="\\u202egnp.exe").count() == 1
    assert "\u202e" not in page.locator("body").inner_text()
    here = page.url
    for tab in ("runs", "checkpoints", "state"):
        page.goto(f"{here}/{tab}")
        page.locator(".tab-panel .rows > *, .tab-panel .json").first.wait_for()
        is_harmless(page, HOSTILE[:34])
    page.goto(re.sub("#.*", "#/inbox", here))
    is_harmless(page)
    page.locator(".decision").get_by_role("button", name="Edit input…").last.click()
    is_harmless(page)
    assert page.get_by_role("textbox").input_value().endswith('\\u202egnp.exe"\n}')
    page.goto(re.sub("#.*", "#/sessions/mean%20fate", here))
    is_harmless(page)


def test_images_and_files_in_a_result_are_described_and_not_dumped(ann: httpx2.Client, open_console) -> None:
    asked = {"agentType": "eye", "sessionId": "sights", "message": "look"}
    assert ann.post("/start", json=asked).status_code == 200
    settled(ann, "sights")
    page = open_console("#/sessions/sights")
    card = page.locator("details.tool", has_text="see")
    card.locator("summary").first.click()
    card.get_by_text("The moon:").wait_for()
    described = card.locator(".attached").inner_text().split()
    assert " ".join(described) == "image/png moon.png 1 KB, in the message"
    assert "base64" not in page.locator("main").inner_text()


def test_nothing_is_shown_without_credentials_and_no_more_than_they_allow(
    live: LiveServer, ann: httpx2.Client, open_console
) -> None:
    start(ann, "private", "publish")
    settled(ann, "private")
    page = open_console("#/sessions/private", token=None)
    page.get_by_label("Token").fill("a-token-nobody-has")
    page.keyboard.press("Enter")
    page.get_by_text("The server does not accept this token.").wait_for()
    assert "private" not in page.locator("body").inner_text()
    page.get_by_label("Token").fill(BEN)
    page.keyboard.press("Enter")
    page.get_by_text("There is no such session.").wait_for()
    kept = page.evaluate("[JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}), document.cookie]")
    assert BEN in kept[1]
    assert BEN not in kept[0] + kept[2] + page.url
    page.reload()
    page.get_by_text("There is no such session.").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.get_by_text("Nothing is waiting for you.").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").wait_for()

    operator = open_console("#/sessions", token=OPS)
    row = operator.locator(".row", has_text="private")
    row.wait_for()
    assert (row.get_attribute("href"), row.evaluate("row => row.tagName")) == (None, "DIV")
    operator.goto(f"{live.url}/agents/console#/inbox")
    card = operator.locator(".decision", has_text="private")
    card.get_by_text("only its owner decides").wait_for()
    assert card.get_by_role("button").count() == 0


def test_schedules_are_shown_with_their_next_time_and_can_be_paused(ann: httpx2.Client, open_console) -> None:
    rarely = {"agentType": "director", "message": HOSTILE, "everyMs": 864_000_000}
    assert ann.put("/schedules/tides%20%2F%20rarely", json=rarely).status_code == 200
    page = open_console()
    page.get_by_role("heading", name="Sessions").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("c")
    row = page.locator(".row", has_text="tides / rarely")
    row.get_by_text("every 10 d").wait_for()
    row.get_by_text("not due yet").wait_for()
    row.get_by_text("in 9 days").wait_for()
    row.click()
    page.locator(".row-body", has_text="<script>").wait_for()
    assert page.evaluate("window.hacked") is None
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    assert ann.get("/schedules/tides%20%2F%20rarely").json()["paused"] is True
    row.locator(".status[data-status=paused]").wait_for()
    page.get_by_role("button", name="Resume").click()
    row.locator(".status[data-status=active]").wait_for()
    assert ann.get("/schedules/tides%20%2F%20rarely").json()["paused"] is False

    operator = open_console("#/schedules", token=OPS)
    closed = operator.locator(".row.closed", has_text="tides / rarely")
    closed.get_by_text("ann").wait_for()
    assert (closed.evaluate("row => row.tagName"), operator.get_by_role("button", name="Pause").count()) == ("DIV", 0)
    ann.delete("/schedules/tides%20%2F%20rarely")


def test_what_became_of_a_turn_that_was_due_is_told_at_a_glance(open_console) -> None:
    once = {"agentType": "director", "message": "hello", "at": 1_000_000_000_000}
    server = agent_server(console=True, executor={"agents": [*agents, villain]})
    with LiveServer(server) as live, live.client(ANN) as ann:
        start(ann, "mean", "break", agentType="villain")
        settled(ann, "mean")
        ann.put("/schedules/fine", json=once)
        ann.put("/schedules/wrong", json={**once, "sessionId": "mean"})
        page = open_console("#/schedules", url=live.url)
        fine, wrong = (page.locator(".row", has_text=name) for name in ("fine", "wrong"))
        fine.locator(".status[data-status=completed]").wait_for()
        fine.get_by_text("last turn started").wait_for()
        wrong.locator(".status[data-status=failed]").wait_for()
        wrong.get_by_text("last turn refused").wait_for()
        wrong.click()
        page.locator(".row-body", has_text="was started by agent 'villain'").wait_for()
        fine.click()
        page.get_by_role("link", name="fine.20010909T014640Z").click()
        page.locator(".title .status[data-status=completed]").wait_for()


def test_what_cannot_be_undone_is_asked_before(ann: httpx2.Client, open_console) -> None:
    start(ann, "regret", "publish")
    settled(ann, "regret")
    page = open_console("#/sessions/regret")
    page.get_by_role("button", name="Abort…").click()
    page.keyboard.press("Escape")
    assert settled(ann, "regret")["awaitingClientTool"] is True

    page.get_by_role("link", name="Checkpoints").click()
    page.get_by_role("button", name="Branch…").first.click()
    page.get_by_label("Id of the new session").fill("regret 2")
    page.keyboard.press("Enter")
    page.locator(".crumbs", has_text="regret 2").wait_for()
    page.get_by_role("button", name="Abort…").wait_for(state="detached")

    page.goto(re.sub("#.*", "#/sessions/regret/checkpoints", page.url))
    page.get_by_role("button", name="Rewind…").last.click()
    page.get_by_role("dialog").get_by_role("button", name="Rewind").click()
    page.locator(".title .status[data-status=interrupted]").wait_for()
    assert ann.get("/sessions/regret").json()["messageCount"] == 0
    assert ann.get("/sessions/regret 2").json()["messageCount"] > 0


def test_the_page_is_served_where_it_is_wanted_and_lets_nothing_else_in(live: LiveServer) -> None:
    with httpx2.Client(base_url=f"{live.url}/agents") as stranger:
        page = stranger.get("/console")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert stranger.get("/console/").headers["location"] == "../console"
        assert {path.name for path in PAGE.iterdir()} == {"index.html", *FILES}
        for name, media_type in FILES.items():
            file = stranger.get(f"/console/{name}")
            assert (file.status_code, file.headers["content-type"].split(";")[0]) == (200, media_type)
            assert file.headers["content-security-policy"] == policy
            assert file.text.count("http") == file.text.count("http://www.w3.org/2000/svg")
        for wrong in ("/console/index.html", "/console/..%2f__init__.py", "/console/nothing.js"):
            assert stranger.get(wrong).json()["code"] == "not_found"
    with LiveServer(agent_server()) as plain, plain.client() as client:
        assert client.get("/console").json()["code"] == "not_found"
