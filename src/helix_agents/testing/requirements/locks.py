"""What every lock manager has to keep."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_HOLDING = promised_by(
    "locks",
    {
        "locks.one-holder": "Of many that acquire a lock at once one holds it; the rest are told.",
        "locks.says-who-and-until-when": "A lock tells its key, its owner (given, or one of its own) and its end.",
        "locks.tokens-grow": "Each acquisition of a key has a higher token than all before it.",
        "locks.lease-runs-out": "A lock whose lease is over can be taken by another, no sooner.",
        "locks.loser-is-told": "A holder that lost its lock to another can neither renew nor release it.",
        "locks.renewed": "Renewing prolongs the lease and keeps the token.",
        "locks.released": "A released lock is free at once; releasing or renewing it again is refused.",
        "locks.waiter-is-served": "A waiting caller gets the lock when it is released by another handle.",
        "locks.waiter-gives-up": "A waiting caller is told after its timeout.",
        "locks.keys-apart": "Locks of different keys and namespaces have nothing to do with each other.",
        "locks.bad-key-refused": "A key or an owner that can never be is refused.",
    },
)
_ACROSS_PROCESSES = promised_by(
    "locks",
    {"locks.one-holder-across-processes": "Of many processes one holds a lock at a time, and no token is given twice."},
    several_processes=True,
)

LOCKS = requirements(_HOLDING, _ACROSS_PROCESSES)
"""Every requirement of the lock manager."""
