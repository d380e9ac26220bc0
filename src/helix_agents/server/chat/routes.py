"""The chat handler: what a front end sends becomes one entry of the engine, and the answer a stream of UI parts.

Of what arrives only the last message counts. A new message of the user begins a turn, over whatever still waits; the
same message again joins the turn it began, and one that the page edited begins its turn anew. An assistant's message
with results or decisions answers the calls that the server waits for, and only those, and the run goes on. History in
the request is never read.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    NothingToResumeError,
    SessionAlreadyExistsError,
    StillWaitingError,
)
from helix_agents.domain.ids import CheckpointId, RunId, SessionId
from helix_agents.domain.messages import Message, ToolMessage, UserMessage
from helix_agents.domain.runs import SUSPENDED
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.transcript import NOT_EXECUTED, RUN_STOPPED, only_held
from helix_agents.engine.steps.answers import ABANDONED, TIMED_OUT
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.server.answers import Submitted
from helix_agents.server.bodies import ChatStopBody, SubmitBody
from helix_agents.server.calls import Call, json_response
from helix_agents.server.chat.inputs import Answered, ChatBody, Said, intent_of
from helix_agents.server.chat.streams import follow, go_on, nothing_yet, replay
from helix_agents.server.chat.turns import Conversation, Turn, first_run_of, read_conversation, was_taken_back
from helix_agents.server.chat.ui_parts import Version
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.executor_routes import cursor_of, entry_agent, stopped, submit


async def chat(call: Call) -> Any:
    """Say something, answer what waits, or ask for the last answer again."""
    body: ChatBody = await call.body(ChatBody)
    session_id = call.checked(body.id)
    version = version_of(call)
    intent = intent_of(body)
    call.gate.check_stream(call.principal)
    session = await call.find_session(session_id)
    if body.trigger == "regenerate-message":
        if session is None or not isinstance(intent, Said):
            raise RefusedError(409, "cannot_regenerate", "There is no answer here that could be written again.")
        return await _regenerate(call, session, intent, version)
    if isinstance(intent, Answered):
        if session is None:
            raise RefusedError(404, "session_not_found", f"There is no session {session_id!r}.")
        return await _answer(call, session, intent, version)
    try:
        return await _said(call, body, session, intent.message, version)
    except (AgentAlreadyRunningError, SessionAlreadyExistsError):
        session = await call.find_session(session_id) if session is None else None
        if session is None:
            raise
        # It was begun meanwhile: by the same message, or by another one.
        return await _said(call, body, session, intent.message, version)


async def reconnect(call: Call) -> Any:
    """The answer that is being written, from its start; nothing when none is.

    An answer that ended since is sent to a page that says how far its snapshot went (`after`, or `Last-Event-ID`), and
    to one that says nothing if it may have seen the answer without its end. A page asks before its first message, too,
    and would show a refusal: where there is no session yet, or somebody else's, nothing is being written.
    """
    session_id = call.path_id()
    version = version_of(call)
    after = max(cursor_of(call), call.number("after", 0))
    session = await call.executor.sessions.find(session_id)
    if session is None or not call.owns(session):
        return Response(status_code=204)
    conversation = await read_conversation(call.executor, session.session_id)
    run = conversation.run
    if run is None:
        return Response(status_code=204)
    ago = None if run.ended_at is None else call.executor.sessions.now_ms() - run.ended_at
    owed = call.owed.pay(session.session_id, conversation.message_id, run.run_id, ended_ms_ago=ago)
    missed = after < conversation.sequence if after else owed
    if run.status != "running" and not missed:
        return Response(status_code=204)
    call.gate.check_stream(call.principal)
    return await replay(call, conversation, version)


async def chat_submit(call: Call) -> Response:
    """Answer a call and, when nothing else is missing, go on; the answer is read from the chat's stream.

    Where the call's `reason` is `unknown_outcome`, it was begun, and nobody knows whether it took effect: an approval
    lets it run a second time, a denial tells the model that the outcome is unknown, and a `client-tool-result` says
    what happened.
    """
    body: SubmitBody = await call.body(SubmitBody)
    session = await call.session(call.path_id())
    if body.session_id is not None and body.session_id != session.session_id:
        raise invalid("The body names another session than the path.")
    call.gate.check_open()
    submitted = await submit(call, session.session_id, body)
    run_id: RunId | None = None
    if submitted.continuation == "resume":
        try:
            run = await call.begin(lambda: call.executor.resume(call.agent_of(session), session.session_id))
            run_id = run.run_id
        except AgentAlreadyRunningError as running:
            run_id = running.run_id
    return json_response(
        Submitted(
            outcome=submitted.outcome,
            continuation=submitted.continuation,
            still_waiting=submitted.still_waiting,
            run_id=run_id,
        )
    )


async def chat_interrupt(call: Call) -> Response:
    """Stop the answer that is being written, keeping what was said."""
    body: ChatStopBody = await call.body(ChatStopBody)
    session = await call.session(call.path_id())
    return json_response(stopped(await call.executor.interrupt(session.session_id, body.reason)))


async def chat_abort(call: Call) -> Response:
    """Stop the answer that is being written, for good."""
    body: ChatStopBody = await call.body(ChatStopBody)
    session = await call.session(call.path_id())
    return json_response(stopped(await call.executor.abort(session.session_id, body.reason)))


def version_of(call: Call) -> Version:
    """Which major of the client's library to speak to; it does not say so itself."""
    asked = call.query("uiVersion")
    given = call.request.headers.get("x-helix-ui-version", "6") if asked is None else asked
    if given not in ("6", "7"):
        raise invalid(f"uiVersion is 6 or 7, not {given[:80]!r}.")
    return 7 if given == "7" else 6


def _agent_for(call: Call, body: ChatBody, session: SessionState | None) -> AnyAgent:
    """The session's own agent; for a new one the agent the request names, or else the only one there is."""
    if session is not None:
        return call.agent_of(session)
    named = body.agent or call.query("agent")
    if named is not None:
        return entry_agent(call, named)
    if len(call.entry_agents) != 1:
        raise invalid("This server has several agents; name one as agent in the body or the query.")
    return entry_agent(call, next(iter(call.entry_agents)))


async def _said(
    call: Call, body: ChatBody, session: SessionState | None, message: UserMessage, version: Version
) -> Any:
    """The answer to a message, in a session that is there or in one that must be new: by the time it begins, somebody
    else may have taken the id."""
    agent = _agent_for(call, body, session)
    known = None if session is None else await _known(call, session, message, version, edited=body.message_id)
    if known is not None:
        return known
    owner = call.owner()
    run = await call.begin(
        lambda: call.executor.execute(
            agent,
            message,
            body.id,
            user_id=owner,
            idempotency_key=message.id,
            only_new=session is None,
            if_running=body.if_running,
        )
    )
    return follow(call, agent.name, run, version)


async def _known(
    call: Call, session: SessionState, message: UserMessage, version: Version, *, edited: str | None
) -> Any:
    """The answer to a message that was said before; None when it is a new one.

    The same message again joins the turn that it began. A page that edits one says so, and shows nothing that came
    after it: the conversation goes back to there.

    Raises:
        RefusedError: others came after it.
    """
    if message.id is None:
        return None
    conversation = await read_conversation(call.executor, session.session_id)
    is_edited = edited == message.id
    turn = next((each for each in reversed(conversation.turns) if each.asked_id == message.id), None)
    if turn is None or turn.asked is None or conversation.run is None:
        return None
    if turn.asked.id is None and not is_edited:
        return None
    if turn is conversation.turn and not (is_edited and turn.asked.content != message.content):
        return await replay(call, conversation, version)
    if is_edited:
        return await _write_again(call, session, conversation, turn, message, version)
    raise RefusedError(409, "history_mismatch", "This message was said before, and others came after it.")


async def _answer(call: Call, session: SessionState, intent: Answered, version: Version) -> Any:
    """Store what the page answered, then go on as the answers allow."""
    await _check_shown(call, session, intent)
    outcomes = await _submit_all(call, session, intent)
    accepted = [outcome for outcome in outcomes if outcome.outcome == "accepted"]
    if not accepted and any(outcome.outcome == "late_answer_after_timeout" for outcome in outcomes):
        raise RefusedError(409, "late_answer_after_timeout", "The run went on with a timeout before this answer came.")
    run = await call.current_run(session.session_id)
    if run is not None and run.status in SUSPENDED:
        # What was still missing after our last answer another page may have given, before we came to give it.
        is_last = bool(accepted) and accepted[-1] is outcomes[-1]
        waits = accepted[-1].continuation == "wait" if is_last else await _waits(call, session.session_id)
        if waits and accepted:
            return nothing_yet(call, intent, version)
        if waits:
            raise RefusedError(409, "still_waiting", "Other calls of this message wait for an answer.")
        await _resume(call, session)
    return await go_on(call, session, intent, version)


async def _check_shown(call: Call, session: SessionState, intent: Answered) -> None:
    """A page may still show an answer that was written anew since, and calls of both may go by the same ids.

    Raises:
        RefusedError: it does; nothing of what it answers was asked by the answer there is now.
    """
    first_run = first_run_of(intent.message_id)
    if first_run is None or first_run == session.current_run_id:
        return
    if await was_taken_back(call.executor, session.session_id, first_run):
        raise RefusedError(409, "history_mismatch", "This answer was written anew since; load the conversation again.")


async def _waits(call: Call, session_id: SessionId) -> bool:
    """Whether a call waits for an answer now; another page may have given one since the request came."""
    session = await call.executor.sessions.get(session_id)
    return any(each.state == "waiting" for each in session.pending_client_tool_calls.values())


async def _submit_all(call: Call, session: SessionState, intent: Answered) -> list[Submitted]:
    """Submit whatever may be an answer; a call that nobody waits for or waited for is history, and is not looked at."""
    outcomes: list[Submitted] = []
    for answer in intent.answers:
        try:
            outcomes.append(await submit(call, session.session_id, answer))
        except RefusedError as refusal:
            if refusal.status != 404:
                raise
    return outcomes


async def _resume(call: Call, session: SessionState) -> None:
    """Go on with what was answered, or find that another page did so, perhaps to the end."""
    try:
        await call.begin(lambda: call.executor.resume(call.agent_of(session), session.session_id))
    except (AgentAlreadyRunningError, NothingToResumeError):
        return
    except StillWaitingError:
        raise RefusedError(409, "still_waiting", "Other calls of this message wait for an answer.") from None


async def _regenerate(call: Call, session: SessionState, intent: Said, version: Version) -> Any:
    """Write the answer to a message again: retry what failed, or go back to before it."""
    conversation = await read_conversation(call.executor, session.session_id)
    agent = call.agent_of(session)
    asked_id = intent.message.id
    turn = next((turn for turn in reversed(conversation.turns) if turn.asked_id == asked_id), None)
    if turn is None or turn.asked is None:
        raise RefusedError(409, "cannot_regenerate", "The server does not know the message this answer belongs to.")
    if turn is conversation.turn and session.status == "failed" and session.failure_reason != CANCELLED:
        await call.begin(lambda: call.executor.retry(agent, session.session_id))
        # The steps before the one that failed stay, and the page has thrown them away.
        return await replay(call, await read_conversation(call.executor, session.session_id), version)
    return await _write_again(call, session, conversation, turn, turn.asked, version)


async def _write_again(
    call: Call,
    session: SessionState,
    conversation: Conversation,
    turn: Turn,
    message: UserMessage,
    version: Version,
) -> Any:
    """Go back to before a turn, and begin it anew with this message."""
    agent = call.agent_of(session)
    earlier = conversation.turns[: conversation.turns.index(turn)]
    if any(each.asked is not None for each in earlier):
        checkpoint_id = await _checkpoint_before(call, session.session_id, turn, earlier[-1].messages)
    else:
        checkpoint_id = BEGINNING
    if checkpoint_id is None:
        raise RefusedError(
            409, "cannot_regenerate", "There is no checkpoint before the message this answer belongs to."
        )
    run = await call.begin(
        lambda: call.executor.resume(
            agent, session.session_id, mode="from_checkpoint", checkpoint_id=checkpoint_id, message=message
        )
    )
    return follow(call, agent.name, run, version)


async def _checkpoint_before(
    call: Call, session_id: SessionId, turn: Turn, before: Sequence[Message]
) -> CheckpointId | None:
    """The checkpoint right before a turn, or before the results of calls that nobody had answered by then: whoever goes
    back there finds results for them that say the same."""
    left_open = sum(1 for _ in takewhile(_says_nothing, reversed(before)))
    offset = 0
    while True:
        page = await call.executor.sessions.checkpoints(session_id, offset=offset, limit=200)
        for checkpoint in page.items:
            if 0 <= turn.first - checkpoint.message_count <= left_open:
                return checkpoint.checkpoint_id
        if not page.has_more:
            return None
        offset += len(page.items)


def _says_nothing(message: Message) -> bool:
    """Whether a message is the result of a call that was left open, or one that was held while others were: going back
    to before it loses nothing."""
    if not isinstance(message, ToolMessage):
        return False
    return message.code in (ABANDONED, TIMED_OUT, RUN_STOPPED, NOT_EXECUTED) or bool(only_held((message,)))
