"""Sessions, messages, runs and checkpoints as the command line shows them."""

from collections.abc import Iterable
from typing import Any

from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, plain_page, shown_json, shown_output, shown_span, shown_time, source_line
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.messages import AssistantMessage, Message, Text, ToolMessage, UserMessage
from helix_agents.domain.paging import Page
from helix_agents.domain.parts import result_in_words
from helix_agents.domain.sessions import SessionFilter, SessionState
from helix_agents.domain.traces import trace_of
from helix_agents.ports.state_store import SessionStateStore


async def list_sessions(output: Output, url: str, *, offset: int, limit: int, **where: Any) -> None:
    """List sessions that match, newest first."""
    async with open_stored(url) as backend:
        page = await backend.state.list_sessions(SessionFilter(**where), offset=offset, limit=limit)
    output.answer(plain_page(page))
    output.table(
        ("session", "agent", "status", "messages", "updated"),
        [
            (
                each.session_id,
                each.agent_type if each.held_by is None else f"{each.agent_type} → {each.held_by}",
                each.status,
                str(each.message_count),
                shown_time(each.updated_at),
            )
            for each in page.items
        ],
    )
    _tell_rest(output, page)


async def show_session(output: Output, url: str, session_id: str) -> None:
    """Show everything about one session except its messages."""
    async with open_stored(url) as backend:
        session = await backend.state.load_state(session_id)
        run = await backend.state.get_current_run(session_id)
        children = await backend.state.get_sub_session_refs(session_id)
    output.answer({"session": plain(session), "current_run": plain(run), "children": plain(children)})
    facts = {
        "session": session.session_id,
        "agent": _agent(session),
        "status": session.status,
        "run": "none yet" if run is None else f"{run.run_id}, turn {run.turn}, attempt {run.attempt}, {run.status}",
        "steps": str(session.step_count),
        "messages": str(session.message_count),
        "checkpoint": session.checkpoint_id or "-",
        "user": session.user_id or "-",
        "tags": ", ".join(session.tags) or "-",
        "parent": session.parent_session_id or "-",
        "trace": trace_of(session),
        "created": shown_time(session.created_at),
        "updated": shown_time(session.updated_at),
        "expires": shown_time(session.expires_at),
        "error": session.error or "-",
        "output": "-" if session.output is None else shown_output(session.output),
    }
    for name, value in facts.items():
        output.say(f"{name:<10} {value}")
    for key, value in session.custom_state.items():
        output.say(f"{'state':<10} {key} = {shown_json(value)}")
    for call in session.pending_client_tool_calls.values():
        output.say(f"{call.state:<10} {call.kind} {call.tool_call_id} {call.tool_name} {shown_json(call.input)}")
    for child in children:
        output.say(f"{'child':<10} {child.sub_session_id} {child.agent_type} {child.status}")


async def show_messages(output: Output, url: str, session_id: str, *, offset: int, limit: int) -> None:
    """Show the latest messages, in the order they were said."""
    async with open_stored(url) as backend:
        await _check_session(backend.state, session_id)
        page = await backend.state.get_messages(session_id, offset=offset, limit=limit)
    output.answer({**plain_page(page), "items": plain(page.items[::-1])})
    for stored in reversed(page.items):
        for line in shown_message(stored.message):
            output.say(f"{stored.sequence:>4}  {line}")
    if page.has_more:
        output.note(f"{page.total - page.offset - len(page.items)} earlier; --offset {page.offset + len(page.items)}")


def shown_message(message: Message) -> Iterable[str]:
    """A message in lines."""
    match message:
        case UserMessage(content=content, hidden=hidden):
            text = content if isinstance(content, str) else " ".join(_part(part) for part in content)
            yield f"{'hidden' if hidden else 'user'}: {text}"
        case AssistantMessage(text=text, tool_calls=calls, interrupted=interrupted):
            cut = f" [{interrupted}]" if interrupted else ""
            for made in message.provider_calls:
                came_to = "failed" if made.error else "answers"
                yield f"the provider calls {made.name} {shown_json(made.arguments)}"
                yield f"{made.name} {came_to}: {shown_json(made.result)}"
            if text or not (calls or message.provider_calls):
                yield f"assistant: {text}{cut}"
            for source in dict.fromkeys(map(source_line, message.sources)):
                yield f"source: {source}"
            for call in calls:
                yield f"assistant calls {call.name} {shown_json(call.arguments)}{cut}"
        case ToolMessage(tool_name=name, content=content, in_parts=in_parts, error=error):
            said = shown_json(result_in_words(content, in_parts=in_parts))
            yield f"{name} {'failed' if error else 'answers'}: {said}"


def _part(part: Any) -> str:
    return part.text if isinstance(part, Text) else f"[{type(part).__name__.lower()} {part.url[:60]}]"


async def list_runs(output: Output, url: str, session_id: str, *, offset: int, limit: int) -> None:
    """List the session's turns."""
    async with open_stored(url) as backend:
        await _check_session(backend.state, session_id)
        page = await backend.state.list_runs(session_id, offset=offset, limit=limit)
        now = backend.state.now_ms()
    output.answer(plain_page(page))
    output.table(
        ("turn", "run", "attempt", "status", "steps", "started", "took", "reason"),
        [
            (
                str(run.turn),
                run.run_id,
                str(run.attempt),
                run.status,
                str(run.step_count),
                shown_time(run.started_at),
                shown_span((run.ended_at or now) - run.started_at),
                run.completion_reason or "",
            )
            for run in page.items
        ],
    )
    _tell_rest(output, page)


async def list_checkpoints(output: Output, url: str, session_id: str, *, offset: int, limit: int) -> None:
    """List the checkpoints that the session can go back to."""
    async with open_stored(url) as backend:
        await _check_session(backend.state, session_id)
        page = await backend.state.list_checkpoints(session_id, offset=offset, limit=limit)
    output.answer(plain_page(page))
    output.table(
        ("checkpoint", "step", "messages", "status", "created"),
        [
            (
                each.checkpoint_id,
                str(each.step_count),
                str(each.message_count),
                each.status,
                shown_time(each.created_at),
            )
            for each in page.items
        ],
    )
    _tell_rest(output, page)


async def _check_session(store: SessionStateStore, session_id: str) -> None:
    if not await store.session_exists(session_id):
        raise SessionNotFoundError(session_id)


def _tell_rest(output: Output, page: Page[Any]) -> None:
    if page.has_more:
        shown = page.offset + len(page.items)
        output.note(f"{page.total - shown} more; --offset {shown}")


def _agent(session: SessionState) -> str:
    """The agent that a session belongs to, and the one that has it if that is another."""
    at_work = f"{session.worked_by} (version {session.agent_version})"
    return at_work if session.held_by is None else f"{session.agent_type}, handed over to {at_work}"
