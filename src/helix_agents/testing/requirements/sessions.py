"""What every state store has to guarantee about sessions and their history."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_SESSIONS = promised_by(
    "sessions",
    {
        "sessions.created-as-asked": "A new session is active, at version 1, without messages, runs or checkpoint, and "
        "has every field it was created with.",
        "sessions.one-creator-wins": "Of many concurrent callers of create_session one wins; the others get an error.",
        "sessions.taken-id-left-alone": "Creating a session whose id is taken leaves the existing one unchanged.",
        "sessions.child-knows-its-root": "A child keeps its parent and has its parent's root.",
        "sessions.unknown-raises": "An operation on a session that does not exist raises SessionNotFoundError and "
        "creates nothing.",
        "sessions.unknown-has-nothing-to-get": "get_current_run, get_latest_checkpoint and get_checkpoint return None "
        "for a session that does not exist.",
        "sessions.exists-answers-any-string": "session_exists accepts any string.",
        "sessions.found-as-listed": "find_session accepts any string and returns the session as a listing shows it, "
        "or None.",
        "sessions.delete-removes-everything": "delete_session deletes the session and everything that belongs to it.",
        "sessions.delete-idempotent": "Deleting a session that does not exist is fine.",
        "sessions.delete-takes-the-tree": "delete_session deletes every session below it and no other.",
        "sessions.delete-frees-the-id": "An id whose session was deleted can be used again, for an empty session.",
        "sessions.load-is-one-read": "load_state never mixes two commits.",
        "sessions.counters-distinct": "Concurrent increments of the step or resume count return different counts.",
        "sessions.metadata-patched": "patch_metadata sets and removes the given keys and leaves the others.",
    },
)

_SESSIONS_ACROSS_PROCESSES = promised_by(
    "sessions",
    {
        "sessions.one-creator-wins-across-processes": "Of many processes that create the same session one wins.",
        "sessions.increments-across-processes": "Version-checked increments of many processes are all counted, and "
        "every loser learns the version that beat it.",
        "sessions.merges-across-processes": "Appends to messages and to the custom state from many processes all "
        "arrive, each batch in one piece.",
        "sessions.opened-by-many-processes": "Many processes may open a new store at the same time.",
    },
    several_processes=True,
)

_IDS = promised_by(
    "ids",
    {
        "values.unstorable-refused": "A value that JSON would quietly change, such as NaN or bytes, is refused.",
        "ids.impossible-refused": "An id that is empty, too long or unprintable is refused on the way in.",
        "ids.leads-to-its-session": "No session can be called . or .., which a URL path takes for another place.",
        "ids.impossible-is-absent": "A lookup with an id that can never exist finds nothing, whatever the operation.",
        "values.numbers-fit": "A number of a record that needs more than 64 bits is refused.",
        "values.names-are-text": "A name with a zero character is refused.",
        "ids.are-data": "No session id can reach another session, whatever characters it has.",
        "ids.values-are-data": "User, tag and metadata values are compared as they are, whatever characters they have.",
        "ids.namespaces-are-apart": "A namespace sees nothing of another one, and may use the same ids.",
    },
)

_VERSIONS = promised_by(
    "versions",
    {
        "versions.each-commit-counts-one": "Each commit of the session record raises its version by exactly one.",
        "versions.rows-of-others-do-not-count": "Flags, answers, references, staging, effects and leases leave the "
        "version alone.",
        "versions.nothing-done-counts-nothing": "A write that changes nothing does not raise the version.",
        "versions.failed-write-changes-nothing": "A write that raises has changed nothing.",
    },
)

_SAVE = promised_by(
    "saving",
    {
        "save.stores-every-field": "save_state stores every field of the record that belongs to its writer.",
        "save.ignores-rows-of-others": "save_state ignores what others may write at the same time: flag, pending "
        "calls, ownership and completed markers.",
        "save.keeps-identity": "save_state never changes identity, creation time, version or counts.",
        "save.stale-refused": "save_state with an outdated expected_version raises StaleStateError with both versions.",
        "save.unconditional": "save_state without expected_version overwrites whatever is stored.",
        "save.mode-write-once": "A mode that was set cannot be changed.",
        "save.leaves-a-checkpoint": "save_state leaves a checkpoint of source save with the keys that changed.",
    },
)

_STATUS = promised_by(
    "status",
    {
        "status.update-stores-context": "update_status stores the status with its context, error and reason.",
        "status.compare-and-set": "compare_and_set_status changes the status if it is one of the expected ones.",
        "status.conflict-is-truthful": "A lost compare_and_set_status returns the stored status and version.",
        "status.conflict-changes-nothing": "A lost compare_and_set_status changes nothing.",
        "status.one-winner": "Of many concurrent compare_and_set_status from one version exactly one wins.",
    },
)

_WRITES = promised_by(
    "state writes",
    {
        "writes.in-order": "Writes apply in order: append concatenates, replace and delete override the old value.",
        "writes.changes-meet-what-is-there": "Sums, entries of an object and items of a list are changed in the "
        "stored value; a missing key, or any other value, counts as empty.",
        "writes.append-needs-a-list": "An append to something that is not a list is refused, with key and reason.",
        "writes.conflicts-are-reported": "Two calls that change the same thing under a key are reported with the key "
        "and the calls.",
        "writes.concurrent-merges-arrive": "Concurrent merges are all applied.",
    },
)

_RECORDS = promised_by(
    "records",
    {
        "records.round-trip": "Every field of every record comes back as it was: absent, empty, nested, non-ASCII.",
        "records.large-integers": "Integers beyond 64 bits come back exactly.",
        "records.unstorable-refused": "A value JSON cannot carry is refused before anything is stored.",
        "records.wrong-types-refused": "A value that could not be read back as its declared type is refused as well.",
        "records.answers-are-copies": "Changing a value after giving it to the store, or after getting it from the "
        "store, changes nothing in the store.",
    },
)

_LISTING = promised_by(
    "listing",
    {
        "listing.newest-first": "list_sessions returns the newest first, ties by id.",
        "listing.filters": "list_sessions filters by user, agent type, statuses, parent, root, roots, all tags, all "
        "metadata, creation range (inclusive) and expiry.",
        "listing.filters-combine": "All conditions given in a filter must hold.",
        "listing.marks": "Sessions with a mark of the engine in their metadata are found by its present value, "
        "whichever write set, changed or removed it.",
        "listing.pages-alike": "All listings are paged alike: offset, limit, total, has_more, 50 by default.",
        "listing.bad-page-refused": "A negative offset and a limit outside 1 to 200 are refused.",
    },
)

_MESSAGES = promised_by(
    "messages",
    {
        "messages.appended-in-order": "Messages are numbered 1, 2, 3 in the order they were appended.",
        "messages.newest-first": "get_messages pages from the newest message.",
        "messages.transcript": "load_transcript returns everything after a sequence, oldest first.",
        "messages.batches-stay-whole": "Concurrent appends are never lost and never interleave.",
        "messages.truncated": "truncate_messages keeps the first messages; counts, pages and numbering follow.",
        "messages.truncated-beyond-the-end": "Truncating to more messages than there are changes nothing.",
    },
)

_LINEAGE = promised_by(
    "lineage",
    {
        "lineage.branch-takes": "A branch takes over messages, custom state, agent type and user up to its point.",
        "lineage.branch-leaves-behind": "Runs, pending calls, children, flags, tags and metadata are not copied to a "
        "branch.",
        "lineage.branch-at-checkpoint": "A branch at a checkpoint has exactly the checkpoint's messages and state.",
        "lineage.branch-at-message": "A branch at a message count has those messages and the newest state that is not "
        "later; messages that a step took in come after all that the step did.",
        "lineage.branch-heals-open-calls": "Calls open at the end of a branch are answered as not executed.",
        "lineage.branch-keeps-held-results": "Results that an open step held at that point are kept by a branch or a "
        "rewind.",
        "lineage.branch-tells-begun-calls": "Calls that a child worked on at that point are answered as cut short, "
        "and calls that were asked about or are in the ledger are answered with the ledger's result or as having an "
        "unknown outcome, never as not executed.",
        "lineage.of-its-holder": "A session says which agent it was handed over to; after a branch or a rewind, it is "
        "the one that had it at that point.",
        "lineage.of-its-version": "After a branch or a rewind, the state has the agent version that it had at that "
        "point.",
        "lineage.branch-is-apart": "Source and branch see nothing of what the other does afterwards.",
        "lineage.branch-survives-its-source": "Truncating, rewinding or deleting the source leaves the branch whole.",
        "lineage.source-survives-its-branch": "Deleting a branch leaves its source whole.",
        "lineage.branch-of-a-branch": "A branch may be branched again, at any point of what it sees.",
        "lineage.branch-refused": "A branch from an unknown session, an unknown checkpoint or too many messages, or "
        "onto a taken id, is refused.",
        "lineage.branch-costs-the-same": "A branch takes as many statements from a long history as from a short one.",
        "lineage.rewind-to-the-beginning": "A session can be rewound to its beginning, any number of times, and "
        "branched from there: no messages, and the state it was created with.",
        "lineage.rewind-is-exact": "A run start that rewinds restores messages and state exactly, and can go forward "
        "again.",
    },
)

_CHECKPOINTS = promised_by(
    "checkpoints",
    {
        "checkpoints.latest-is-last-written": "get_latest_checkpoint returns the one written last, whatever its step "
        "count.",
        "checkpoints.pointer-moves": "create_checkpoint, save_state, promote_staging and the step commit each leave a "
        "checkpoint, its source and the pointer to it.",
        "checkpoints.describe-the-moment": "A checkpoint records step, status, message count, stream position and run.",
        "checkpoints.hold-their-writes": "A checkpoint holds the writes of its own commit and nothing else.",
        "checkpoints.state-rebuilt": "The custom state at any checkpoint is exactly what it was.",
        "checkpoints.foreign-id-unknown": "A checkpoint of another session is unknown here.",
        "checkpoints.newest-first": "list_checkpoints returns the newest first.",
    },
)

_REFS = promised_by(
    "sub-sessions",
    {
        "refs.kept": "References keep every field and are listed oldest first.",
        "refs.added-once": "Adding a reference to a child that already has one leaves it unchanged.",
        "refs.updated": "An update changes the fields it names and leaves the rest.",
        "refs.update-unknown": "Updating a child that the session does not have returns None.",
        "refs.concurrent-adds": "References added concurrently are all stored.",
    },
)

SESSIONS = requirements(
    _SESSIONS,
    _SESSIONS_ACROSS_PROCESSES,
    _IDS,
    _VERSIONS,
    _SAVE,
    _STATUS,
    _WRITES,
    _RECORDS,
    _LISTING,
    _MESSAGES,
    _LINEAGE,
    _CHECKPOINTS,
    _REFS,
)
"""Sessions, their records, messages, listings and lineage."""
