"""What every lock manager has to guarantee."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_HOLDING = promised_by(
    "locks",
    {
        "locks.one-holder": "Of many that acquire a lock at the same time one holds it; the others get an error.",
        "locks.says-who-and-until-when": "A lock has its key, its owner (given or generated) and its end.",
        "locks.tokens-grow": "Each acquisition of a key has a higher token than all before it.",
        "locks.lease-runs-out": "A lock whose lease has expired can be taken by another owner, no sooner.",
        "locks.loser-is-told": "A holder that lost its lock to another can neither renew nor release it.",
        "locks.renewed": "Renewing extends the lease and keeps the token.",
        "locks.released": "A released lock is free at once; releasing or renewing it again is refused.",
        "locks.waiter-is-served": "A waiting caller gets the lock when another handle releases it.",
        "locks.waiter-gives-up": "A waiting caller gets an error after its timeout.",
        "locks.keys-apart": "Locks of different keys and namespaces are independent of each other.",
        "locks.bad-key-refused": "A key or an owner that can never be valid is refused.",
    },
)
_ACROSS_PROCESSES = promised_by(
    "locks",
    {"locks.one-holder-across-processes": "Of many processes one holds a lock at a time, and no token is given twice."},
    several_processes=True,
)

LOCKS = requirements(_HOLDING, _ACROSS_PROCESSES)
"""Every requirement of the lock manager."""
