"""The chat handler: turns a front end's request into one entry of the engine and streams the answer as UI parts.

Only the last message of a request counts. A new user message starts a turn, even if calls still wait; the same message
again joins the turn that it started, and a message that the page edited restarts its turn. An assistant message with
results or decisions answers the calls that the server waits for, and only those, and the run continues. History in the
request is never read.
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
from helix_agents.server.chat.streams import follow, follow_steering, go_on, nothing_yet, replay, settled
from helix_agents.server.chat.turns import Conversation, Turn, first_run_of, read_conversation, was_taken_back
from helix_agents.server.chat.ui_parts import Version
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.executor_routes import cursor_of, entry_agent, stopped, submit


async def chat(call: Call) -> Any:
    """Send a message, answer waiting calls, or regenerate an answer."""
    body: ChatBody = await call.body(ChatBody)
    session_id = call.checked(body.id)
    version = version_of(call)
    intent = intent_of(body)
    call.gate.check_stream(call.principal)
    session = await call.find_session(session_id)
    if body.trigger == "regenerate-message":
        if session is None or not isinstance(intent, Said):
            raise RefusedError(409, "cannot_regenerate", "There is no answer here to regenerate.")
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
        # Another request started the session or the turn meanwhile, with the same message or with a different one.
        return await _said(call, body, session, intent.message, version)


async def reconnect(call: Call) -> Any:
    """The answer that is being written, from its start; 204 if there is none.

    An answer that has ended meanwhile is still sent to a page that says how far its snapshot went (`after`, or
    `Last-Event-ID`), and to a page that does not say so if it may have seen the answer without its end. Pages also ask
    before their first message, and would show an error to the user. So a session that does not exist, or that belongs
    to another user, is 204 as well.
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
    """Answer a waiting call, and resume the run if no other call waits; read the reply from the chat's stream.

    If the call's `reason` is `unknown_outcome`, the call was started, and it is not known whether it took effect. An
    approval runs it a second time, a denial tells the model that the outcome is unknown, and a `client-tool-result`
    says what happened.
    """
    body: SubmitBody = await call.body(SubmitBody)
    session = await call.session(call.path_id())
    if body.session_id is not None and body.session_id != session.session_id:
        raise invalid("The body and the path name different sessions.")
    call.gate.check_open()
    submitted = await submit(call, session.session_id, body)
    run_id: RunId | None = None
    # A companion in the background continues with its answer, whatever other calls still wait for.
    background = submitted.continuation == "wait" and not await _is_suspended(call, session.session_id)
    if submitted.continuation == "resume" or background:
        try:
            run = await call.begin(lambda: call.executor.resume(call.agent_of(session), session.session_id))
            run_id = run.run_id
        except AgentAlreadyRunningError as running:
            run_id = running.run_id
        except NothingToResumeError:
            # The run waits for more than this answer.
            if not background:
                raise
    return json_response(
        Submitted(
            outcome=submitted.outcome,
            continuation=submitted.continuation,
            still_waiting=submitted.still_waiting,
            run_id=run_id,
        )
    )


async def chat_interrupt(call: Call) -> Response:
    """Stop the answer that is being written, and keep what was said."""
    body: ChatStopBody = await call.body(ChatStopBody)
    session = await call.session(call.path_id())
    return json_response(stopped(await call.executor.interrupt(session.session_id, body.reason)))


async def chat_abort(call: Call) -> Response:
    """Stop the answer that is being written, for good."""
    body: ChatStopBody = await call.body(ChatStopBody)
    session = await call.session(call.path_id())
    return json_response(stopped(await call.executor.abort(session.session_id, body.reason)))


def version_of(call: Call) -> Version:
    """Which major version of the client's library to speak to; the library itself does not say."""
    asked = call.query("uiVersion")
    given = call.request.headers.get("x-helix-ui-version", "6") if asked is None else asked
    if given not in ("6", "7"):
        raise invalid(f"uiVersion must be 6 or 7, not {given[:80]!r}.")
    return 7 if given == "7" else 6


def _agent_for(call: Call, body: ChatBody, session: SessionState | None) -> AnyAgent:
    """The session's own agent; for a new session the agent that the request names, or else the server's only one."""
    if session is not None:
        return call.agent_of(session)
    named = body.agent or call.query("agent")
    if named is not None:
        return entry_agent(call, named)
    if len(call.entry_agents) != 1:
        names = ", ".join(sorted(call.entry_agents))
        raise invalid(f"Name an agent of this server with `agent` in the body or the query: {names}.")
    return entry_agent(call, next(iter(call.entry_agents)))


async def _said(
    call: Call, body: ChatBody, session: SessionState | None, message: UserMessage, version: Version
) -> Any:
    """The answer to a message, in an existing session or in a new one. Another request may take the id of a new session
    before it starts."""
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
            only_own=session is not None,
            if_running=body.if_running,
        ),
        within=session,
    )
    answer = follow_steering if body.if_running == "steer" else follow
    return answer(call, agent.name, run, version)


async def _known(
    call: Call, session: SessionState, message: UserMessage, version: Version, *, edited: str | None
) -> Any:
    """The answer to a message that was sent before; None for a new message.

    Sending the same message again joins the turn that it started. A page that edits a message says so and shows nothing
    that came after it, so the conversation is rewound to that message.

    Raises:
        RefusedError: other messages came after it.
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
    raise RefusedError(409, "history_mismatch", "This message was sent before, and others came after it.")


async def _answer(call: Call, session: SessionState, intent: Answered, version: Version) -> Any:
    """Store what the page answered, then continue as far as the answers allow."""
    await _check_shown(call, session, intent)
    outcomes = await _submit_all(call, session, intent)
    accepted = [outcome for outcome in outcomes if outcome.outcome == "accepted"]
    if not accepted and any(outcome.outcome == "late_answer_after_timeout" for outcome in outcomes):
        raise RefusedError(
            409, "late_answer_after_timeout", "The call timed out, and the run continued, before this answer arrived."
        )
    run = await call.current_run(session.session_id)
    if run is not None and run.status in SUSPENDED:
        # Another page may have given the answers that were still missing after our last one, before we got here.
        is_last = bool(accepted) and accepted[-1] is outcomes[-1]
        waits = accepted[-1].continuation == "wait" if is_last else await _waits(call, session.session_id)
        if waits and accepted:
            return nothing_yet(call, intent, version)
        if waits:
            raise RefusedError(409, "still_waiting", "Other calls of this message still wait for an answer.")
        await _resume(call, session)
    elif any(outcome.continuation != "nothing" for outcome in accepted):
        # The run in progress does not take the answer and the conversation does not wait: a background companion asked.
        await _resume(call, session)
        return await settled(call, session, intent, version)
    return await go_on(call, session, intent, version)


async def _check_shown(call: Call, session: SessionState, intent: Answered) -> None:
    """Refuse a page that still shows an answer which was regenerated since: calls of both may have the same ids.

    Raises:
        RefusedError: the page shows an older answer, so the current answer never asked for what the page answers.
    """
    first_run = first_run_of(intent.message_id)
    if first_run is None or first_run == session.current_run_id:
        return
    if await was_taken_back(call.executor, session.session_id, first_run):
        raise RefusedError(409, "history_mismatch", "This answer has been regenerated; reload the conversation.")


async def _is_suspended(call: Call, session_id: SessionId) -> bool:
    """Whether the conversation itself waits for an answer."""
    run = await call.current_run(session_id)
    return run is not None and run.status in SUSPENDED


async def _waits(call: Call, session_id: SessionId) -> bool:
    """Whether a call waits for an answer now; another page may have given one since the request came."""
    session = await call.executor.sessions.get(session_id)
    return any(each.state == "waiting" for each in session.pending_client_tool_calls.values())


async def _submit_all(call: Call, session: SessionState, intent: Answered) -> list[Submitted]:
    """Submit everything that may be an answer; a call that neither waits nor waited for one is history and is
    ignored."""
    outcomes: list[Submitted] = []
    for answer in intent.answers:
        try:
            outcomes.append(await submit(call, session.session_id, answer))
        except RefusedError as refusal:
            if refusal.status != 404:
                raise
    return outcomes


async def _resume(call: Call, session: SessionState) -> None:
    """Continue with the answers, or find that another page has done so, perhaps to the end."""
    try:
        await call.begin(lambda: call.executor.resume(call.agent_of(session), session.session_id))
    except (AgentAlreadyRunningError, NothingToResumeError):
        return
    except StillWaitingError:
        raise RefusedError(409, "still_waiting", "Other calls of this message still wait for an answer.") from None


async def _regenerate(call: Call, session: SessionState, intent: Said, version: Version) -> Any:
    """Write the answer to a message again: retry a failed run, or rewind to before the message."""
    conversation = await read_conversation(call.executor, session.session_id)
    agent = call.agent_of(session)
    asked_id = intent.message.id
    turn = next((turn for turn in reversed(conversation.turns) if turn.asked_id == asked_id), None)
    if turn is None or turn.asked is None:
        raise RefusedError(
            409, "cannot_regenerate", "The server does not know the message that this answer belongs to."
        )
    if turn is conversation.turn and session.status == "failed" and session.failure_reason != CANCELLED:
        await call.begin(lambda: call.executor.retry(agent, session.session_id))
        # The steps before the failed one are kept, but the page has discarded them.
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
    """Rewind to before a turn, and start it again with this message."""
    agent = call.agent_of(session)
    earlier = conversation.turns[: conversation.turns.index(turn)]
    if any(each.asked is not None for each in earlier):
        checkpoint_id = await _checkpoint_before(call, session.session_id, turn, earlier[-1].messages)
    else:
        checkpoint_id = BEGINNING
    if checkpoint_id is None:
        raise RefusedError(
            409, "cannot_regenerate", "There is no checkpoint before the message that this answer belongs to."
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
    """The checkpoint right before a turn, or before the results of calls that were unanswered at the time: after a
    rewind to there, those calls get results that say the same."""
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
    """Whether a message is the result of a call that was left open, or one that was held while other calls were open:
    rewinding to before it loses nothing."""
    if not isinstance(message, ToolMessage):
        return False
    return message.code in (ABANDONED, TIMED_OUT, RUN_STOPPED, NOT_EXECUTED) or bool(only_held((message,)))
