"""A parent with two children, one of which needs somebody's consent, and what must be true of it in the end."""

from collections import Counter
from itertools import groupby

from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.pending import OPEN, ApprovalAnswer, PendingFilter
from helix_agents.domain.rendering import surviving
from helix_agents.domain.results import Completed, Suspended
from helix_agents.domain.usage import UsageFilter
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.contracts.executor.family import assert_well_told
from tests.recovery.reference_conversation import Traces

SESSION = "s-1"


class Diary(BaseModel):
    done: list[str] = []


@tool
def look_up(ctx: ToolContext[Diary, Traces], topic: str) -> str:
    """Look something up; twice does no harm."""
    ctx.deps.leave(topic)
    ctx.state.done.append(topic)
    return f"a page about {topic}"


@tool(effect="once")
def send_letter(ctx: ToolContext[Diary, Traces], to: str) -> str:
    """Send a letter, which cannot be taken back."""
    ctx.deps.leave(to)
    ctx.state.done.append(to)
    return f"sent to {to}"


@tool(require_approval=True)
def publish(ctx: ToolContext[Diary, Traces], title: str) -> str:
    """Publish a report, if somebody agrees."""
    ctx.deps.leave(title)
    ctx.state.done.append(title)
    return f"published {title}"


SCRIPTS = {
    "editor": [
        reply(
            "You two, please. ",
            calls=[
                call("subagent__writer", {"message": "Write"}, id="call_0"),
                call("subagent__publisher", {"message": "Publish"}, id="call_1"),
            ],
        ),
        reply("All done. "),
    ],
    "writer": [
        reply(
            "I look and write. ",
            calls=[
                call("look_up", {"topic": "tides"}, id="call_0"),
                call("send_letter", {"to": "ann"}, id="call_1"),
            ],
        ),
        reply("Written. "),
    ],
    "publisher": [
        reply("May I? ", calls=[call("publish", {"title": "Tides"}, id="call_0")]),
        reply("Published. "),
    ],
}
DEEDS = {"editor": [], "writer": ["tides", "ann"], "publisher": ["Tides"]}
ONCE = {"ann", "Tides"}


def _agent(name: str, **fields: object) -> Agent[Diary, str, Traces]:
    model = ScriptedModel(SCRIPTS[name], chunk=5)
    return Agent(name=name, description=f"The {name}.", model=model, state=Diary, **fields)  # pyright: ignore[reportArgumentType]


WRITER = _agent("writer", tools=[look_up, send_letter])
PUBLISHER = _agent("publisher", tools=[publish])
AGENT = _agent("editor", tools=[WRITER.as_tool(), PUBLISHER.as_tool()])
# A child is found by its name where its parent was never run: answers are checked against its tools.
AGENTS = [AGENT, WRITER, PUBLISHER]


async def go_on(helix: Executor) -> None:
    """Take the conversation from wherever it stands to its end, knowing nothing but what is stored."""
    await helix.recover()
    handle = await helix.get_handle(AGENT, SESSION) or await helix.execute(AGENT, "Go.", SESSION)
    while True:
        match await handle.result():
            case Suspended(pending=pending):
                for waiting in pending:
                    if waiting.state == "waiting":
                        agrees = ApprovalAnswer(approved=waiting.reason is None, reason=waiting.reason)
                        await helix.submit_tool_result(SESSION, waiting.tool_call_id, agrees)
                handle = await helix.resume(AGENT, SESSION)
            case Completed():
                return
            case other:
                raise AssertionError(f"the conversation came to {other}")


# -- what must be true at the end, however often it was cut


async def check_end(backend: Backend, traces: Traces) -> set[str]:
    """Everything that must hold; answers the deeds whose outcome stayed unknown."""
    ids = {"editor": SESSION}
    for ref in await backend.state.get_sub_session_refs(SESSION):
        assert ref.agent_type not in ids, f"a second {ref.agent_type}"
        ids[ref.agent_type] = ref.sub_session_id
        assert ref.status == "completed"
    assert ids.keys() == SCRIPTS.keys()
    assert (await backend.state.list_sessions()).total == len(ids), "a session that belongs to nobody"
    unknown: set[str] = set()
    for name, session_id in ids.items():
        unknown |= await check_session(backend, name, session_id)
    check_deeds(traces.counted(), unknown)
    await check_nothing_is_left(backend, ids)
    await check_stream(backend)
    return unknown


async def check_session(backend: Backend, name: str, session_id: str) -> set[str]:
    """One conversation: every reply once, each followed by the results of its calls, and runs that all ended."""
    transcript = [stored.message for stored in await backend.state.load_transcript(session_id)]
    suffix = "" if name == "editor" else f"_{session_id[-6:]}"
    expected: list[str] = []
    for said in SCRIPTS[name]:
        expected += [said.text, *(f"{each.id}{suffix}" for each in said.calls)]
    assert [_shown(message) for message in transcript] == ["user", *expected]
    results = [message for message in transcript if isinstance(message, ToolMessage)]
    assert all(message.code == "outcome_unknown" for message in results if message.error)
    done = dict(zip((each.tool_call_id for each in results), DEEDS[name] or ["", ""], strict=True))
    unknown = {done[message.tool_call_id] for message in results if message.error}
    session = await backend.state.load_state(session_id)
    assert session.custom_state == {"done": [deed for deed in DEEDS[name] if deed not in unknown]}
    runs = (await backend.state.list_runs(session_id)).items
    suspensions = [run for run in runs if run.status.startswith("suspended")]
    assert runs[0].status == session.status == "completed"
    assert len(runs) == len(suspensions) + 1
    assert len(suspensions) <= len(unknown) + (name != "writer") + (name == "editor")
    return unknown


def check_deeds(done: Counter[str], unknown: set[str]) -> None:
    assert set(done) <= {"tides", *ONCE}
    assert done["tides"] >= 1
    for deed in ONCE:
        assert done[deed] <= 1, f"{deed} was done twice"
        assert done[deed] == 1 or deed in unknown, f"{deed} has a result but was not done"


async def check_nothing_is_left(backend: Backend, ids: dict[str, str]) -> None:
    assert await backend.state.list_orphans() == ()
    rows = (await backend.state.list_pending(PendingFilter(root_session_id=SESSION, states=()))).items
    assert {row.state for row in rows} == {"consumed"}
    assert not {row.state for row in rows} & OPEN
    for name, session_id in ids.items():
        assert (await backend.state.load_state(session_id)).suspension_context is None
        assert await backend.state.list_effects(session_id) == ()
        assert not await backend.state.has_staged_changes(session_id)
        entries = (await backend.usage.query_usage(UsageFilter(session_id=session_id), limit=200)).items
        assert len([entry for entry in entries if entry.source_type == "tokens"]) == len(SCRIPTS[name])


async def check_stream(backend: Backend) -> None:
    """A reader of the stream alone has seen each agent say what it said, once, in its place."""
    info = await backend.streams.get_stream_info(SESSION)
    assert info is not None
    assert (info.status, info.end_status) == ("ended", "completed")
    chunks = await backend.streams.get_all_chunks(SESSION)
    assert_well_told(chunks, SESSION)
    deltas = sorted(
        (chunk for chunk in surviving(chunks) if isinstance(chunk, TextDelta)), key=lambda chunk: chunk.agent_type
    )
    said = {
        name: "".join(delta.delta for delta in of_agent)
        for name, of_agent in groupby(deltas, key=lambda chunk: chunk.agent_type)
    }
    assert said == {name: "".join(each.text for each in script) for name, script in SCRIPTS.items()}


def _shown(message: Message) -> str:
    match message:
        case UserMessage():
            return "user"
        case AssistantMessage(text=text):
            return text or ""
        case ToolMessage(tool_call_id=call_id):
            return call_id
