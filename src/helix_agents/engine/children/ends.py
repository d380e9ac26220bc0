"""How a child ended, as reported to the session that started it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import TOOLS_BEGUN, AssistantMessage, ToolMessage
from helix_agents.domain.paging import MAX_LIMIT
from helix_agents.domain.parts import Content, in_json, looks_like_parts, parts_of_output
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate, SubSessionStatus
from helix_agents.domain.transcript import RUN_STOPPED, cut_short, was_never_begun
from helix_agents.engine.remote.rest import TYPED_FAILURES
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.state_store import SessionStateStore

TIMED_OUT = "sub_agent_timeout"


class ChildEnd(NamedTuple):
    """How a child ended: the result of the call that it was started for, and the status of its reference."""

    child: SessionState
    message: ToolMessage
    status: SubSessionStatus

    @property
    def ref_update(self) -> SubSessionRefUpdate:
        """What the child's reference says from now on."""
        child, result = self.child, self.message.content
        return SubSessionRefUpdate(
            sub_session_id=child.session_id, status=self.status, result=result, error=child.error
        )


async def end_of_child(
    store: SessionStateStore, tool_call_id: ToolCallId, tool_name: str, session: SessionState, run: RunRecord
) -> ChildEnd:
    """How the run of a child ended, as the parent's model reads it."""
    about: dict[str, Any] = {"tool_call_id": tool_call_id, "tool_name": tool_name}
    if run.status == "completed":
        output = await _output_of(store, session, run)
        message = ToolMessage(**about, content=output.content, in_parts=output.in_parts)
        return ChildEnd(session, message, "completed")
    if run.status == "interrupted":
        is_late = _ran_out_of_time(session)
        code = TIMED_OUT if is_late else "sub_agent_interrupted"
        text = "The sub-agent did not finish in time." if is_late else "The sub-agent was interrupted."
        return ChildEnd(session, ToolMessage(**about, content=text, error=True, code=code), "interrupted")
    text = f"The sub-agent failed ({run.completion_reason}): {run.error or session.error}"
    code = run.completion_reason if run.completion_reason in TYPED_FAILURES else "sub_agent_failed"
    return ChildEnd(session, ToolMessage(**about, content=text, error=True, code=code), "failed")


async def _output_of(store: SessionStateStore, session: SessionState, run: RunRecord) -> Content:
    """A child's output. The parent's model sees the images and files that a tool of the child made."""
    output = run.output
    if not looks_like_parts(output if isinstance(output, list) else [output]):
        return Content(output)
    page = await store.get_messages(session.session_id, limit=MAX_LIMIT)
    parts = parts_of_output(output, (each.message for each in page.items))
    return in_json(parts) if parts else Content(output)


async def known_of_children(
    store: SessionStateStore, session_id: SessionId, calls: Mapping[ToolCallId, str]
) -> dict[ToolCallId, ToolMessage]:
    """What is known about those calls, given as id to tool name, that a child session was started for: the child's
    result, or else that the call was cut short, and which tools were begun by then."""
    known: dict[ToolCallId, ToolMessage] = {}
    for ref in await store.get_sub_session_refs(session_id):
        if ref.status == "running" and ref.tool_call_id in calls:
            call_id, tool_name = ref.tool_call_id, calls[ref.tool_call_id]
            ended = await own_end(store, ref)
            if ended is not None:
                known[call_id] = (await end_of_child(store, call_id, tool_name, *ended)).message
                continue
            cut = cut_short(call_id, tool_name, RUN_STOPPED)
            if ref.mode == "ephemeral":
                begun = sorted(await _tools_begun(store, ref.sub_session_id))
                cut = msgspec.structs.replace(cut, metadata={TOOLS_BEGUN: begun})
            known[call_id] = cut
    return known


async def _tools_begun(store: SessionStateStore, session_id: SessionId) -> set[str]:
    """The names of the tools that were begun in a session and in those below it, whatever came of them."""
    transcript = [stored.message for stored in await store.load_transcript(session_id)]
    results = [each for each in transcript if isinstance(each, ToolMessage)]
    begun = {each.tool_name for each in results if not was_never_begun(each)}
    begun.update(effect.tool_name for effect in await store.list_effects(session_id))
    below = await store.get_sub_session_refs(session_id)
    delegated = {ref.tool_call_id for ref in below}
    calls = (call for each in transcript if isinstance(each, AssistantMessage) for call in each.tool_calls)
    begun.update(call.name for call in calls if call.id in delegated)
    for ref in below:
        begun |= await _tools_begun(store, ref.sub_session_id)
    return begun


async def own_end(store: SessionStateStore, ref: SubSessionRef) -> tuple[SessionState, RunRecord] | None:
    """A child that came to its end by itself, for the call that it was started for.

    None if it works or waits, if it was stopped from above, or if its end is not a call's result because it is a
    detached companion.
    """
    run = await store.get_current_run(ref.sub_session_id)
    if run is None or run.parent_run_id is None or run.status == "running" or run.status in SUSPENDED:
        return None
    session = await store.load_state(ref.sub_session_id)
    stopped = run.completion_reason == CANCELLED or (run.status == "interrupted" and not _ran_out_of_time(session))
    return None if stopped else (session, run)


def _ran_out_of_time(session: SessionState) -> bool:
    return session.interrupt_context is not None and session.interrupt_context.reason == TIMED_OUT
