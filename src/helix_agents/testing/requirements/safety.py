"""What every state store has to keep whatever happens: limits, crashes, races."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_LIMITS = promised_by(
    "limits",
    {
        "limits.declared": "A store tells its limits.",
        "limits.message": "A message over the limit is refused, by every way in, and nothing is stored.",
        "limits.staged-write": "A staged change over the limit is refused, and nothing is stored.",
        "limits.state": "A custom state over the limit is refused, by every way in, and nothing is stored.",
    },
)

_STORE = promised_by(
    "the store as a whole",
    {
        "store.complete": "The store has every operation of the port.",
        "store.durable": "What was answered is there for a handle opened later.",
        "store.schema-version": "Every handle tells the same schema version.",
        "store.closed": "Closing twice is fine; a closed store refuses work by name.",
        "store.vacuum-loses-nothing": "vacuum changes nothing that can be read.",
        "store.like-the-reference": "Any history of operations gives the same answers as the reference store.",
    },
)

_CRASHES = promised_by(
    "crash safety",
    {
        "crash.all-or-nothing": "A connection lost at any statement leaves a write done or not begun.",
        "crash.cancelled": "A caller who is cancelled at any statement leaves a write done or not begun, and the store "
        "in use.",
        "crash.never-applied-twice": "A store that tries again after a lost connection applies no write twice.",
        "crash.retried-once": "A step commit or run start whose answer was lost, sent again, is applied exactly once.",
    },
)

_KILLS = promised_by(
    "crash safety",
    {
        "crash.killed-at-a-boundary": "A process killed at any statement leaves the store at a commit boundary, with "
        "everything that was answered.",
    },
    several_processes=True,
)

_RACES = promised_by(
    "races",
    {
        "races.commit-and-commit": "Of two steps that expect one version one wins, wherever the other is held.",
        "races.same-commit-twice": "The same step sent twice at once is applied once, and both get one answer.",
        "races.start-and-start": "Of two run starts from one reading one wins, wherever the other is held.",
        "races.create-and-create": "Of two creators one wins, wherever the other is held.",
        "races.answer-and-suspension": "An answer that meets a suspension is seen by the run, or told to resume it.",
        "races.stop-and-suspension": "A stop that meets a suspension is seen by the run, or told that none is going.",
        "races.child-and-suspension": "A child that goes on as its parent suspends is seen, or sees it suspended.",
        "races.claim-and-commit": "A commit that meets a takeover is whole and before it, or refused.",
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
