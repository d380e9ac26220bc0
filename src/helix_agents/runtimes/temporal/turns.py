"""What Temporal is told about turns, and what it is told if an effect could not be done."""

from typing import Any

from helix_agents.domain.runs import RunRecord
from helix_agents.engine.plain import EFFECT_SEQUENCE
from helix_agents.runtimes.temporal.options import TemporalOptions

TURN = f"HelixTurn{EFFECT_SEQUENCE}"
"""The workflow's type carries the number of the effect sequence: a program with another loop never replays it."""

PASSING = "helix.passing"
"""An effect could not be done because of a temporary problem: it is requested again, however long that takes."""

LEAVING = "helix.leaving"
"""An effect was released by a process that ends; another process does it at once."""

TIMED_OUT = "helix.timed_out"
"""A worker noticed before the server that an effect's time is up."""


def order_for(run: RunRecord, options: TemporalOptions) -> dict[str, Any]:
    """What a workflow is given: which attempt of which run, and how patient it should be."""
    return {
        "session_id": run.session_id,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "heartbeat_seconds": options.heartbeat_seconds,
        "tool_seconds": options.tool_seconds,
        "effect_seconds": options.effect_seconds,
        "history_events": options.history_events,
    }
