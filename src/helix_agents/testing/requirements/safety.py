"""What every state store has to guarantee whatever happens: limits, crashes, races."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_LIMITS = promised_by(
    "limits",
    {
        "limits.declared": "A store declares its limits.",
        "limits.message": "A message over the limit is refused on every way in, and nothing is stored.",
        "limits.staged-write": "A staged change over the limit is refused, and nothing is stored.",
        "limits.state": "A custom state over the limit is refused on every way in, and nothing is stored.",
    },
)

_STORE = promised_by(
    "the store as a whole",
    {
        "store.complete": "The store has every operation of the port.",
        "store.durable": "What was acknowledged is visible to a handle opened later.",
        "store.schema-version": "Every handle reports the same schema version.",
        "store.closed": "Closing twice is fine; a closed store refuses work with a named error.",
        "store.vacuum-loses-nothing": "vacuum changes nothing that can be read.",
        "store.like-the-reference": "Any history of operations gives the same results as the reference store.",
    },
)

_CRASHES = promised_by(
    "crash safety",
    {
        "crash.all-or-nothing": "A connection lost at any statement leaves a write done or not started.",
        "crash.cancelled": "A caller that is cancelled at any statement leaves a write done or not started, and the "
        "store usable.",
        "crash.never-applied-twice": "A store that tries again after a lost connection applies no write twice.",
        "crash.retried-once": "A step commit or run start whose reply was lost is applied exactly once if it is sent "
        "again.",
    },
)

_KILLS = promised_by(
    "crash safety",
    {
        "crash.killed-at-a-boundary": "A process killed at any statement leaves the store at a commit boundary, with "
        "everything that was acknowledged.",
    },
    several_processes=True,
)

_RACES = promised_by(
    "races",
    {
        "races.commit-and-commit": "Of two steps that expect the same version one wins, wherever the other is held.",
        "races.same-commit-twice": "The same step sent twice at the same time is applied once, and both callers get "
        "the same result.",
        "races.start-and-start": "Of two run starts based on the same read one wins, wherever the other is held.",
        "races.create-and-create": "Of two creators one wins, wherever the other is held.",
        "races.answer-and-suspension": "If an answer meets a suspension, either the run sees the answer, or the "
        "answer's result says to resume it.",
        "races.stop-and-suspension": "If a stop meets a suspension, either the run sees the stop, or the stop's "
        "result says that no run is running.",
        "races.child-and-suspension": "If a child continues while its parent suspends, either the parent sees it, or "
        "the child sees the parent suspended.",
        "races.claim-and-commit": "A commit that meets a takeover is complete and comes before it, or is refused.",
        "races.delete-and-commit": "A commit that meets a deletion leaves nothing behind.",
        "races.expiry-and-answer": "An answer that meets its deadline is accepted, and nothing is marked twice.",
    },
)

SAFETY = requirements(
    _LIMITS,
    _STORE,
    _CRASHES,
    _KILLS,
    _RACES,
)
"""The store as a whole, and under stress."""
