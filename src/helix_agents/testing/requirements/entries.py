"""What every store of entries has to keep."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_VALUES = promised_by(
    "entries",
    {
        "entries.versions-count-on": "A key's version rises by one with every value, also across its deletion.",
        "entries.compare-and-set": "A write that expects a version is made on exactly that version, 0 being no key.",
        "entries.deleted-is-gone": "A deleted key is found by nothing, and its history is gone.",
        "entries.cleared": "A cleared scope holds no key; one that is forgotten is as if it had never been.",
        "entries.history-kept": "As many versions as asked for stay readable, exactly as they were written.",
        "entries.usage-exact": "What a scope weighs is the weight of every kept version, at all times.",
        "entries.quota-refused": "A write over the limit is refused, names what is largest, and changes nothing.",
        "entries.lighter-write-allowed": "A write that makes a scope lighter is made even when it is over its limit.",
        "entries.prefix-exact": "A prefix matches what starts with it and nothing else, whatever its letters.",
        "entries.pages": "Pages follow each other by key, without a gap or a repetition.",
        "entries.transaction-whole": "Of several changes all are made or none.",
        "entries.sent-again-once": "A transaction sent again under its key gets the first answer and changes nothing.",
        "entries.events-in-order": "Announced changes are told in order of revision, whole transactions at a time.",
        "entries.events-compacted": "What was announced and let go of is named by the revision up to which.",
        "entries.listeners-are-woken": "Who listens is woken by a commit of another handle.",
        "entries.audit-in-the-transaction": "A transaction and its audit rows are made together, in one chain.",
        "entries.namespaces-apart": "No namespace sees a key, an event, a revision or an audit row of another.",
        "entries.events-by-time": "What was announced since a time is found, whatever the clock did meanwhile.",
        "entries.overview": "An overview shows scopes, conversations and what waits at one revision.",
        "entries.waiting-calls": "A glance lists the calls that wait, of all sessions or of an agent's.",
        "entries.recent-runs": "A glance lists the runs that are not over, or ended since a time.",
        "entries.any-history": "Any history of writes leaves what a plain model of it says.",
    },
)
_MOVING = promised_by(
    "entries",
    {
        "entries.dump-one-revision": "A dump shows one revision, whatever is written while it is read.",
        "entries.restore-exact": "A restored scope has the values and history of its dump, and no other key.",
        "entries.restore-goes-forward": "After a restore no version or revision that was read before fits any more.",
        "entries.restore-leaves-others": "A restore leaves scopes alone that it does not name.",
        "entries.restore-once": "A restore that was made, or that was never staged, is refused.",
    },
)
_SESSIONS = promised_by(
    "entries",
    {
        "entries.ride-in-the-step": "Changes in a session's scope become visible with the commit of its step.",
        "entries.ride-in-the-start": "Changes given with the start of a run become visible with it, or neither does.",
        "entries.rewind": "A rewind gives a session's scope the values it had at that checkpoint, back and forth.",
        "entries.die-with-the-session": "Deleting or expiring a session destroys its scope; a finished turn does not.",
    },
)
_SAFETY = promised_by(
    "entries",
    {
        "entries.all-or-nothing": "A write whose connection is lost at any statement is whole or not there.",
        "entries.cancelled": "A caller who is cancelled at any statement leaves a write whole or not there.",
        "entries.held-race": "Of two writers on one version one wins, wherever the other is held.",
    },
)
_ACROSS_PROCESSES = promised_by(
    "entries",
    {
        "entries.increments-across-processes": "Of many processes that count up, some killed, no count is lost.",
        "entries.woken-across-processes": "Who listens is woken by a commit of another process.",
    },
    several_processes=True,
)

ENTRIES = requirements(_VALUES, _MOVING, _SESSIONS, _SAFETY, _ACROSS_PROCESSES)
"""Every requirement of the store of entries."""
