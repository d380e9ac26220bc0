"""What every state store has to keep."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_SESSIONS = promised_by(
    "sessions",
    {
        "sessions.created-as-asked": "A new session is active, at version 1, without messages, runs or checkpoint, and "
        "has every field it was created with.",
        "sessions.one-creator-wins": "Of many concurrent callers of create_session one wins; the rest are told.",
        "sessions.taken-id-left-alone": "Creating a session whose id is taken leaves the existing one as it was.",
        "sessions.child-knows-its-root": "A child keeps its parent and has its parent's root.",
        "sessions.unknown-raises": "An operation on a session that is not there raises SessionNotFoundError and "
        "creates nothing.",
        "sessions.unknown-has-nothing-to-get": "get_current_run, get_latest_checkpoint and get_checkpoint answer None "
        "for a session that is not there.",
        "sessions.exists-answers-any-string": "session_exists answers for any string.",
        "sessions.delete-removes-everything": "delete_session removes the session and all that belongs to it.",
        "sessions.delete-idempotent": "Deleting a session that is not there is fine.",
        "sessions.delete-takes-the-tree": "delete_session removes every session below it and no other.",
        "sessions.delete-frees-the-id": "An id whose session was deleted can be used again, for an empty session.",
        "sessions.load-is-one-read": "load_state never mixes two commits.",
        "sessions.counters-distinct": "Concurrent increments of step and resume count get different answers.",
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
        "sessions.opened-by-many-processes": "Many processes may open a store that nobody opened before.",
    },
    several_processes=True,
)

_IDS = promised_by(
    "ids",
    {
        "ids.impossible-refused": "An id that is empty, too long or unprintable is refused where it would enter.",
        "ids.impossible-is-absent": "Reading by an id that can never be finds nothing.",
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
        "versions.nothing-done-counts-nothing": "A write that changes nothing raises nothing.",
        "versions.failed-write-changes-nothing": "A write that raises has changed nothing.",
    },
)

_SAVE = promised_by(
    "saving",
    {
        "save.stores-every-field": "save_state stores every field of the record that belongs to its writer.",
        "save.ignores-rows-of-others": "save_state ignores what others may write meanwhile: flag, pending calls, "
        "ownership and completed markers.",
        "save.keeps-identity": "save_state never changes identity, creation time, version or counts.",
        "save.stale-refused": "save_state with an outdated expected_version raises StaleStateError with both versions.",
        "save.unconditional": "save_state without expected_version stores over whatever is there.",
        "save.mode-write-once": "A mode that was set cannot be changed.",
        "save.leaves-a-checkpoint": "save_state leaves a checkpoint of source save with the keys that changed.",
    },
)

_STATUS = promised_by(
    "status",
    {
        "status.update-stores-context": "update_status stores the status with its context, error and reason.",
        "status.compare-and-set": "compare_and_set_status changes the status if it is one of the expected ones.",
        "status.conflict-is-truthful": "A lost compare_and_set_status answers the status and version that are stored.",
        "status.conflict-changes-nothing": "A lost compare_and_set_status changes nothing.",
        "status.one-winner": "Of many concurrent compare_and_set_status from one version exactly one wins.",
    },
)

_WRITES = promised_by(
    "state writes",
    {
        "writes.in-order": "Writes apply in their order: append concatenates, replace and delete win over what was.",
        "writes.append-needs-a-list": "An append to something that is not a list is refused, with key and reason.",
        "writes.conflicts-are-reported": "Two calls that touch one key, not both appending, are reported with key and "
        "calls.",
        "writes.concurrent-merges-arrive": "Concurrent merges all arrive.",
    },
)

_RECORDS = promised_by(
    "records",
    {
        "records.round-trip": "Every field of every record comes back as it was: absent, empty, nested, non-ASCII.",
        "records.large-integers": "Integers beyond 64 bits come back exactly.",
        "records.unstorable-refused": "A value JSON cannot carry is refused before anything is stored.",
        "records.answers-are-copies": "Changing a value after giving it to the store, or after getting it from the "
        "store, changes nothing in the store.",
    },
)

_LISTING = promised_by(
    "listing",
    {
        "listing.newest-first": "list_sessions gives the newest first, ties by id.",
        "listing.filters": "list_sessions filters by user, agent type, statuses, parent, roots, all tags, all "
        "metadata, creation range (inclusive) and expiry.",
        "listing.filters-combine": "Everything given in a filter must hold.",
        "listing.pages-alike": "All listings page alike: offset, limit, total, has_more, 50 by default.",
        "listing.bad-page-refused": "A negative offset and a limit outside 1 to 200 are refused.",
    },
)

_MESSAGES = promised_by(
    "messages",
    {
        "messages.appended-in-order": "Messages are numbered 1, 2, 3 in the order they were appended.",
        "messages.newest-first": "get_messages pages from the newest message.",
        "messages.transcript": "load_transcript gives everything after a sequence, oldest first.",
        "messages.batches-stay-whole": "Concurrent appends get lost nowhere and never interleave.",
        "messages.truncated": "truncate_messages keeps the first messages; counts, pages and numbering follow.",
        "messages.truncated-beyond-the-end": "Truncating to more messages than there are changes nothing.",
    },
)

_LINEAGE = promised_by(
    "lineage",
    {
        "lineage.branch-takes": "A branch takes messages, custom state, agent type and user up to its point.",
        "lineage.branch-leaves-behind": "Runs, pending calls, children, flags, tags and metadata stay behind.",
        "lineage.branch-at-checkpoint": "A branch at a checkpoint has exactly its messages and state.",
        "lineage.branch-at-message": "A branch at a message count has those messages and the newest state not later.",
        "lineage.branch-heals-open-calls": "Calls open at the end of a branch are answered as not executed.",
        "lineage.branch-is-apart": "What source and branch do afterwards, neither sees of the other.",
        "lineage.branch-survives-its-source": "Truncating, rewinding or deleting the source leaves the branch whole.",
        "lineage.source-survives-its-branch": "Deleting a branch leaves its source whole.",
        "lineage.branch-of-a-branch": "A branch may be branched, at any point of what it sees.",
        "lineage.branch-refused": "A branch from an unknown session, an unknown checkpoint or too many messages, or "
        "onto a taken id, is refused.",
        "lineage.branch-costs-the-same": "A branch takes as many statements from a long history as from a short one.",
        "lineage.rewind-is-exact": "A run start that rewinds restores messages and state exactly, also forward again.",
    },
)

_RUNS = promised_by(
    "runs",
    {
        "runs.start-begins-a-turn": "start_run makes the run current and running, with every field it was given.",
        "runs.turns-contiguous": "Turns count 1, 2, 3 without gaps.",
        "runs.start-makes-the-session": "start_run with create makes the session in the same commit, or is refused "
        "because it is there.",
        "runs.start-settles-the-replaced": "The run a new one replaces is settled, with status, reason and time.",
        "runs.start-refused-on-change": "start_run is refused if session or current run changed since they were read.",
        "runs.one-start-wins": "Of many concurrent starts from one reading exactly one wins.",
        "runs.same-start-again": "The same start sent again gets the first answer and changes nothing.",
        "runs.start-clears-the-outcome": "A start clears output, error, reason and interrupt context of the last turn.",
        "runs.step-count-restarts": "A start sets the step count to 0 unless told to keep it.",
        "runs.suspension-kept-on-request": "A start clears the suspension unless told to keep it, or given a new one.",
        "runs.start-abandons-on-request": "A start that abandons pending calls drops those of the whole tree.",
        "runs.start-drops-on-request": "A start that drops what nobody answered keeps the answers of its tree.",
        "runs.start-counts-resumes": "A start counts a resume only when told to.",
        "runs.start-carries-input": "A start appends its messages and applies its writes in the same commit.",
        "runs.start-under-a-parent": "A child's start writes its reference and staged rows at the parent.",
        "runs.start-needs-the-parents-fence": "A child's start under an outdated parent fence is refused and writes "
        "nothing.",
        "runs.recorded-from-outside": "create_run records a run that becomes current; a taken run id is refused.",
        "runs.updated": "update_run_status stores status, reason, error and steps; a terminal status has an end.",
        "runs.unknown-run": "get_run of an unknown run is None; updating it raises RunNotFoundError.",
        "runs.claimed-once": "Of many claimants of a run one wins: same run, next attempt, new owner.",
        "runs.claim-refused": "A run that ended, or is at another attempt, cannot be claimed.",
    },
)

_RECOVERY = promised_by(
    "recovery",
    {
        "recovery.orphans-found": "Running runs without an owner, or whose owner's lease is over, are orphans.",
        "recovery.owned-runs-left-alone": "A run whose owner has a live lease is no orphan.",
        "recovery.lease-found-while-alive": "A lease is found while it is alive on the store's clock.",
        "recovery.released-at-once": "A released lease makes its runs orphans at once.",
        "recovery.children-left-to-their-parent": "A child whose parent run is running is no orphan.",
        "recovery.oldest-first": "Orphans come oldest first, at most as many as asked for.",
        "recovery.one-query": "Finding orphans takes as many statements among many runs as among few.",
    },
)

_FENCE = promised_by(
    "fencing",
    {
        "fence.older-run-refused": "A run that was replaced can commit, stage and begin nothing.",
        "fence.older-attempt-refused": "An attempt that was replaced can commit, stage and begin nothing.",
        "fence.ended-run-refused": "A run that ended can commit, stage and begin nothing.",
        "fence.checked-first": "A wrong fence is reported before anything else that is wrong.",
    },
)

_CHECKPOINTS = promised_by(
    "checkpoints",
    {
        "checkpoints.latest-is-last-written": "get_latest_checkpoint is the one written last, whatever its step count.",
        "checkpoints.pointer-moves": "create_checkpoint, save_state, promote_staging and the step commit each leave a "
        "checkpoint, its source and the pointer to it.",
        "checkpoints.describe-the-moment": "A checkpoint tells step, status, message count, stream position and run.",
        "checkpoints.hold-their-writes": "A checkpoint holds the writes of its own commit and nothing else.",
        "checkpoints.state-rebuilt": "The custom state at any checkpoint is exactly what it was.",
        "checkpoints.foreign-id-unknown": "A checkpoint of another session is as unknown as any.",
        "checkpoints.newest-first": "list_checkpoints gives the newest first.",
    },
)

_REFS = promised_by(
    "sub-sessions",
    {
        "refs.kept": "References keep every field and come oldest first.",
        "refs.added-once": "Adding a reference to a child that has one leaves it as it is.",
        "refs.updated": "An update changes what it names and leaves the rest.",
        "refs.update-unknown": "Updating a child the session does not have answers None.",
        "refs.concurrent-adds": "References added concurrently all arrive.",
    },
)

_STAGING = promised_by(
    "staging",
    {
        "staging.upsert": "Staging the same step and call again replaces the row.",
        "staging.call-order": "Staged rows come, and are applied, in the model's call order.",
        "staging.promoted-once": "promote_staging applies a step's writes once and removes its rows.",
        "staging.discarded-whole": "discard_staging drops a step's rows, or all, and nothing else.",
        "staging.steps-apart": "Rows of one step are not seen, promoted or discarded with another step.",
        "staging.orphans-by-age": "cleanup_orphaned_staging drops old rows of sessions without a running run only.",
    },
)

_FLAGS = promised_by(
    "interrupts",
    {
        "flags.aimed-at-the-current-run": "A stop is stored for the run that is running, with kind, reason and time.",
        "flags.nothing-running": "Without a running run nothing is stored, and the caller is told.",
        "flags.taken-once": "Of many callers of check_interrupt_flag one gets the flag.",
        "flags.never-hit-the-next-run": "A stop meant for one run is not seen by a later one.",
        "flags.abort-outranks-interrupt": "An abort replaces an interrupt; an interrupt does not replace an abort.",
        "flags.looking-leaves-it": "find_interrupt_flag leaves the flag; clear_interrupt_flag removes any.",
        "flags.seen-by-others": "A flag is seen by every other handle.",
        "flags.waiter-is-woken": "wait_for_interrupt returns the flag as soon as another handle set it.",
        "flags.waiter-times-out": "wait_for_interrupt gives up after its timeout.",
        "flags.waiting-is-cheap": "A waiting caller costs at most two statements a second.",
    },
)

_PENDING = promised_by(
    "pending calls",
    {
        "pending.announced-with-the-step": "A step's pending calls are there with its commit.",
        "pending.found-at-root-or-owner": "A call is found by asking its owner or its root, and nobody else.",
        "pending.shown-in-the-session": "load_state shows a session's open calls; at the root those of the tree, who "
        "owns them, and which are completed.",
        "pending.answered-once": "The first answer stands; a repeated one is told so, for ever.",
        "pending.one-answer-wins": "Of many concurrent answers exactly one is accepted.",
        "pending.answer-says-what-is-next": "An accepted answer says whether to resume, to wait for others, or that a "
        "run is going.",
        "pending.unfit-answer-refused": "An answer of the wrong kind, or with another approval id, is refused.",
        "pending.unknown-call": "An answer to an unknown call is told so and raises nothing.",
        "pending.expired-once": "Each call past its deadline is marked expired for exactly one of many callers.",
        "pending.expired-found-in-order": "Calls past their deadline come oldest deadline first, of one tree if asked.",
        "pending.expired-still-answerable": "An expired call can be answered until a run consumed the timeout.",
        "pending.late-answer-kept-once": "After a run consumed the timeout the first late answer is kept, once.",
        "pending.consumed-by-a-step": "A step consumes answered and expired calls.",
        "pending.dropped-by-a-failure": "A failing step drops its session's unanswered calls and keeps answered ones.",
        "pending.asked-again": "Announcing a consumed or dropped call again makes it wait; one that is open stays.",
        "pending.listed": "list_pending filters by session, root, user, tool, kind, state and age, newest first.",
        "pending.suspension-sees-answers": "A suspending step goes on if an unconsumed answer lies in its tree.",
        "pending.suspension-lists-what-waits": "A suspending step answers with the calls open in its tree.",
        "pending.unresumed-found": "Suspended roots with an unconsumed answer or timeout older than the grace are "
        "listed, and no others.",
        "pending.one-query": "list_pending, deadline and unresumed queries take as many statements among many calls "
        "as among few.",
    },
)

_EFFECTS = promised_by(
    "effects",
    {
        "effects.intent-first": "begin_effect stores an intent with owner and lease, and the tool may run.",
        "effects.finished-result-reused": "Once finished, every later begin gets the recorded result.",
        "effects.busy-elsewhere": "While another owner's lease is alive the tool may not run.",
        "effects.same-owner-continues": "The same owner may begin again, and has a new lease.",
        "effects.unknown-after-a-death": "When the lease is over the outcome is unknown, never a silent second run.",
        "effects.rerun-on-decision": "An unknown effect begins again only on request, with the same idempotency key.",
        "effects.one-begin-wins": "Of many owners that begin at once one may run the tool.",
        "effects.result-recorded-once": "finish_effect records the first result; it stands.",
        "effects.late-result-kept": "A result that comes after the effect was given up is kept as late.",
        "effects.renewed": "renew_effect prolongs the owner's lease, and tells anybody else that it is lost.",
        "effects.unbegun-refused": "Finishing or renewing a call that never began is refused.",
        "effects.stages-the-reply": "What rides with begin_effect is staged, also when the tool may not run.",
        "effects.consumes-the-approval": "begin_effect consumes the approval it runs on, in the same commit.",
        "effects.forgotten-by-a-step": "A step forgets the effects it names.",
        "effects.listed": "list_effects gives the session's ledger, oldest first.",
    },
)

_COMMITS = promised_by(
    "step commit",
    {
        "commits.everything-together": "A step's messages, state, staging, checkpoint, pending calls, references and "
        "run status are there with its commit.",
        "commits.same-again": "The same step of the same attempt sent again gets the first answer and changes nothing.",
        "commits.same-again-after-the-end": "This holds for the step that ended the run, too.",
        "commits.older-step-refused": "A step older than the last one committed is superseded.",
        "commits.stale-refused": "An outdated expected_version raises StaleStateError and nothing is stored.",
        "commits.only-the-named-keys": "With writes, only the keys they name change.",
        "commits.plain-record": "Without a commit, the record's custom state replaces what it was, and staged writes "
        "to other keys stay.",
        "commits.staged-before-own": "Staged writes apply first, in call order, then the step's own.",
        "commits.promotion-optional": "A commit may leave the step's staging alone.",
        "commits.warns": "A step whose calls contest a key says so in its answer.",
        "commits.ends-the-run": "A step may end its run; the run has status, reason, steps and end.",
        "commits.keeps-a-pause": "A step that leaves the session active leaves an operator's pause in place, and says so.",
        "commits.takes-the-stop": "A step may take the stop aimed at its run.",
        "commits.flat": "A commit takes as many statements on a long history as on a short one.",
    },
)

_SETTLING = promised_by(
    "settling",
    {
        "settle.ends-everything": "settle_session sets status, error, reason and messages, ends the current run and "
        "drops what waits, in one commit.",
        "settle.ends-the-tree": "The same happens to every session below it that is not settled.",
        "settle.conflict-is-truthful": "If status, version or run is not the expected one, nothing changes and the "
        "answer says what is stored.",
    },
)

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
        "races.claim-and-commit": "A commit that meets a takeover is whole and before it, or refused.",
        "races.delete-and-commit": "A commit that meets a deletion leaves nothing behind.",
        "races.expiry-and-answer": "An answer that meets its deadline is accepted, and nothing is marked twice.",
    },
)

STATE_STORE = requirements(
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
    _RUNS,
    _RECOVERY,
    _FENCE,
    _CHECKPOINTS,
    _REFS,
    _STAGING,
    _FLAGS,
    _PENDING,
    _EFFECTS,
    _COMMITS,
    _SETTLING,
    _LIMITS,
    _STORE,
    _CRASHES,
    _KILLS,
    _RACES,
)
"""Every requirement of the state store."""
