"""What every store of entries has to guarantee."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_VALUES = promised_by(
    "entries",
    {
        "entries.versions-count-on": "A key's version rises by one with every value, even across its deletion.",
        "entries.compare-and-set": "A write that expects a version is made on exactly that version; 0 means that the "
        "key does not exist.",
        "entries.deleted-is-gone": "Nothing finds a deleted key, and its history is gone.",
        "entries.cleared": "A cleared scope holds no key; a forgotten one leaves no trace.",
        "entries.history-kept": "As many versions as requested stay readable, exactly as they were written.",
        "entries.usage-exact": "The size of a scope is the size of every kept version, at all times.",
        "entries.quota-refused": "A write over the limit is refused, names the largest keys, and changes nothing.",
        "entries.lighter-write-allowed": "A write that makes a scope smaller is made even if the scope is over its "
        "limit.",
        "entries.prefix-exact": "A prefix matches exactly the keys that start with it, whatever its characters.",
        "entries.pages": "Pages follow each other by key, without a gap or a repetition.",
        "entries.transaction-whole": "Of several changes, all are made or none.",
        "entries.sent-again-once": "A transaction sent again under its key gets the first result and changes nothing.",
        "entries.events-in-order": "Announced changes are reported in order of revision, whole transactions at a time.",
        "entries.events-compacted": "The revision up to which announced changes were removed is reported.",
        "entries.listeners-are-woken": "A commit of another handle wakes listeners.",
        "entries.audit-in-the-transaction": "A transaction and its audit rows are made together, in one chain.",
        "entries.namespaces-apart": "A namespace never sees a key, an event, a revision or an audit row of another.",
        "entries.events-by-time": "Changes announced since a given time are found, whatever the clock did meanwhile.",
        "entries.overview": "An overview shows scopes, conversations and what waits at one revision.",
        "entries.waiting-calls": "A glance lists the calls that wait, in all sessions or in those of one agent.",
        "entries.recent-runs": "A glance lists the runs that are not over, or that ended since a given time.",
        "entries.any-history": "Any history of writes leads to the same result as in a plain model.",
    },
)
_MOVING = promised_by(
    "entries",
    {
        "entries.dump-one-revision": "A dump shows one revision, whatever is written while it is read.",
        "entries.restore-exact": "A restored scope has the values and history of its dump, and no other key.",
        "entries.restore-goes-forward": "After a restore, no version or revision that was read before matches any "
        "more.",
        "entries.restore-leaves-others": "A restore leaves scopes alone that it does not name.",
        "entries.restore-once": "A restore that was already made, or never staged, is refused.",
    },
)
_SESSIONS = promised_by(
    "entries",
    {
        "entries.ride-in-the-step": "Changes in a session's scope become visible with the commit of its step.",
        "entries.ride-in-the-start": "Changes given with the start of a run become visible with it, or neither does.",
        "entries.rewind": "A rewind gives a session's scope the values it had at that checkpoint, backwards and "
        "forwards.",
        "entries.die-with-the-session": "Deleting or expiring a session destroys its scope; a finished turn does not.",
    },
)
_SAFETY = promised_by(
    "entries",
    {
        "entries.all-or-nothing": "A write whose connection is lost at any statement is made completely or not at all.",
        "entries.cancelled": "A write whose caller is cancelled at any statement is made completely or not at all.",
        "entries.held-race": "Of two writers on one version one wins, wherever the other is held.",
    },
)
_ACROSS_PROCESSES = promised_by(
    "entries",
    {
        "entries.increments-across-processes": "When many processes count up and some are killed, no count is lost.",
        "entries.woken-across-processes": "A commit of another process wakes listeners.",
    },
    several_processes=True,
)

ENTRIES = requirements(_VALUES, _MOVING, _SESSIONS, _SAFETY, _ACROSS_PROCESSES)
"""Every requirement of the store of entries."""
