"""What the start of a run takes over from its session: its place, its state, and messages that are still owed."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.commits import StartRun
from helix_agents.domain.ids import RunId
from helix_agents.domain.messages import Message, UserMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.session_changes import BEGAN, holder_at, holder_of
from helix_agents.domain.sessions import BranchPoint, Holder, SessionState, SuspensionContext
from helix_agents.domain.transcript import heal
from helix_agents.domain.writes import StepWrites, difference
from helix_agents.engine.requests.standing import Standing
from helix_agents.engine.services import Services
from helix_agents.engine.steps.ledger import known_of_open_calls
from helix_agents.engine.steps.salvage import salvage, salvaged_state
from helix_agents.ports.state_store import SessionStateStore


def start_after(
    services: Services, standing: Standing, common: dict[str, Any], *, run_id: RunId | None = None, **fields: Any
) -> StartRun:
    """The start of a run in the session as read; it is refused if the session changes before the commit."""
    run = standing.run
    return StartRun(
        session_id=standing.session.session_id,
        run_id=run_id or services.ids.new("run"),
        expected_version=standing.session.version,
        expected_run=run.fence if run is not None else None,
        previous_run_id=run.run_id if run is not None else None,
        replaced_status="interrupted",
        replaced_reason="crashed",
        tell=services.tells(run),
        **common,
        **fields,
    )


async def common_fields(
    services: Services, agent: AnyAgent, standing: Standing, expires_at: int | None
) -> dict[str, Any]:
    """What the starts of an agent's runs have in common, whatever they start with."""
    session, run = standing.session, standing.run
    turn = 1 if run is None else run.turn + 1
    return {
        "workflow_id": services.name_workflow(session.agent_type, session.session_id, turn),
        "agent_version": agent.version,
        "expires_at": expires_at,
        "start_sequence": await latest_sequence(services, session),
        "stream": services.claim_stream(session.stream_id or session.session_id, agent.name),
    }


async def latest_sequence(services: Services, session: SessionState) -> int:
    """The chunk of the session's stream after which a run starts."""
    info = await services.streams.get_stream_info(session.stream_id or session.session_id)
    return info.latest_sequence if info is not None else 0


def expiry(services: Services, agent: AnyAgent, expires_in_ms: int | None) -> int | None:
    """When the session expires if it is not used again; None if it does not expire."""
    ttl = expires_in_ms if expires_in_ms is not None else agent.session_ttl_ms
    return None if ttl is None else services.store.now_ms() + ttl


async def checked_state(services: Services, agent: AnyAgent, standing: Standing, given: Any = None) -> StepWrites:
    """What the start writes to the state, including what is known of a dead run's last step and what the entry itself
    sets. Stored state that no longer fits is refused before anything is written."""
    session = standing.session
    state = await salvaged_state(services, agent, session, standing.crashed)
    if given is None:
        present = services.present_state(agent, state, session.agent_version).custom_state
    else:
        present = {**agent.load_state(state, session.agent_version).custom_state, **given_state(agent, given)}
    return difference(session.custom_state, present)


def given_state(agent: AnyAgent, given: Any) -> dict[str, JSON]:
    """What an entry sets in the state: the keys that a mapping names, otherwise the whole state."""
    whole = agent.initial_state(given)
    if not isinstance(given, Mapping):
        return whole
    return {key: whole[key] for key in cast("Mapping[str, JSON]", given)}


async def state_at(
    store: SessionStateStore, session: SessionState, point: BranchPoint
) -> tuple[dict[str, JSON] | None, Holder | None]:
    """The state that a rewind or a branch starts with, and who has it there, as far as that is known in advance.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint.
    """
    if point.checkpoint_id is None and point.message_count is None:
        return session.custom_state, holder_of(session)
    if point.checkpoint_id is None:
        return None, None
    if point.checkpoint_id == BEGINNING:
        return None, holder_at(session, BEGAN)
    state = await store.load_checkpoint_state(session.session_id, point.checkpoint_id)
    checkpoint = await store.get_checkpoint(session.session_id, point.checkpoint_id)
    return state, holder_of(session) if checkpoint is None else holder_at(session, checkpoint.version)


async def healed_words(services: Services, standing: Standing) -> tuple[Message, ...]:
    """What the transcript needs before anything new: a dead run's words, and results for open calls."""
    if standing.crashed is not None:
        return await salvage(services, standing.session, standing.crashed)
    session_id = standing.session.session_id
    page = await services.store.get_messages(session_id, limit=200)
    healed = heal([stored.message for stored in reversed(page.items)])
    names = {each.tool_call_id: each.tool_name for each in healed}
    known = await known_of_open_calls(services.store, session_id, names) if healed else {}
    return tuple(known.get(each.tool_call_id, each) for each in healed)


def entering(suspended: SuspensionContext, messages: tuple[UserMessage, ...], *, new_turn: bool) -> SuspensionContext:
    """The open step, with the messages that follow it. In a new turn it comes before the first step and costs
    nothing."""
    return msgspec.structs.replace(
        suspended,
        step=0 if new_turn else suspended.step,
        entry_messages=(*suspended.entry_messages, *messages),
    )
