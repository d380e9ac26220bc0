"""Everything that a store shows about a session, as plain data: to compare two moments, or two stores."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import PendingFilter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.scenes import step_meta

Observation = dict[str, Any]

STEPS_LOOKED_AT = (1, 2)
"""Staging is read by step: these, of every run, under the names that the scenes give them."""

ALL_STATES = PendingFilter(states=("waiting", "answered", "expired", "consumed", "dropped"))


async def observe(store: SessionStateStore, *session_ids: SessionId) -> dict[SessionId, Observation | None]:
    """What can be read about these sessions; None for one that does not exist.

    Checkpoint ids, which a store generates as it likes, are replaced by their version.
    """
    return {session_id: await _observe_one(store, session_id) for session_id in session_ids}


async def _observe_one(store: SessionStateStore, session_id: SessionId) -> Observation | None:
    try:
        state = await store.load_state(session_id)
    except SessionNotFoundError:
        return None
    checkpoints = (await store.list_checkpoints(session_id, limit=200)).items
    latest = await store.get_latest_checkpoint(session_id)
    runs = await store.list_runs(session_id, limit=200)
    seen: Observation = {
        "state": state,
        "transcript": await store.load_transcript(session_id),
        "page": await store.get_messages(session_id, limit=3),
        "count": await store.get_message_count(session_id),
        "runs": runs,
        "current run": await store.get_current_run(session_id),
        "checkpoints": checkpoints,
        "latest": latest,
        "checkpoint states": [
            await store.load_checkpoint_state(session_id, checkpoint.checkpoint_id) for checkpoint in checkpoints
        ],
        "refs": await store.get_sub_session_refs(session_id),
        "has staging": await store.has_staged_changes(session_id),
        "staging": [
            await store.get_staged_changes(session_id, step_meta(step, run.run_id).step_id)
            for run in runs.items
            for step in STEPS_LOOKED_AT
        ],
        "effects": await store.list_effects(session_id),
        "queued": await store.list_queued(session_id),
        "flag": await store.find_interrupt_flag(session_id),
        "pending": await store.list_pending(msgspec.structs.replace(ALL_STATES, session_id=session_id), limit=200),
    }
    names = {checkpoint.checkpoint_id: f"checkpoint at {checkpoint.version}" for checkpoint in checkpoints}
    return plain(seen, lambda text: names.get(text, text))


def plain(value: Any, rename: Callable[[str], str]) -> Any:
    """The value as dicts and lists that compare exactly (True is not 1, 1 is not 1.0), with every string renamed."""
    match value:
        case str():
            return rename(value)
        case bool() | float():
            return f"{type(value).__name__} {value!r}"
        case msgspec.Struct():
            return {name: plain(getattr(value, name), rename) for name in value.__struct_fields__}
        case Mapping():
            entries = cast("Mapping[Any, Any]", value)
            return {plain(key, rename): plain(entry, rename) for key, entry in entries.items()}
        case list() | tuple():
            return [plain(item, rename) for item in cast("list[Any]", value)]
        case _:
            return value
