"""What every state store has to keep of runs, their steps and what interrupts them."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_RUNS = promised_by(
    "runs",
    {
        "runs.start-begins-a-turn": "start_run makes the run current and running, with every field it was given.",
        "runs.turns-contiguous": "Turns count 1, 2, 3 without gaps.",
        "runs.start-says-all-of-a-new-session": "What start_run makes of a new session is what it was told: nobody has "
        "to read it back.",
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
        "runs.start-drops-what-rests": "A start of a session that has nothing open leaves nothing staged; one that "
        "goes on with an open step keeps it.",
        "runs.start-counts-resumes": "A start counts a resume only when told to.",
        "runs.start-carries-input": "A start appends its messages and applies its writes in the same commit.",
        "runs.start-under-a-parent": "A child's start writes its reference and staged rows at the parent.",
        "runs.start-needs-the-parents-fence": "A child's start under an outdated parent fence is refused and writes "
        "nothing.",
        "runs.recorded-from-outside": "create_run records a run that becomes current; a taken run id is refused.",
        "runs.updated": "update_run_status stores status, reason, error, output, steps; a terminal status has an end.",
        "runs.unknown-run": "get_run of an unknown run is None; updating it raises RunNotFoundError.",
        "runs.counted-by-user": "count_running counts the root sessions of a user, or of nobody, whose run is going.",
        "runs.claimed-once": "Of many claimants of a run one wins: same run, next attempt, new owner.",
        "runs.claim-refused": "A run that ended, or is at another attempt, cannot be claimed.",
        "runs.claim-moves": "Whoever claims a run may give it the name it has in another engine, or none.",
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
        "recovery.oldest-first": "Orphans come oldest first, at most as many as asked for, page after page.",
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

_STAGING = promised_by(
    "staging",
    {
        "staging.upsert": "Staging the same step and call again replaces the row.",
        "staging.call-order": "Staged rows come, and are applied, in the model's call order.",
        "staging.promoted-once": "promote_staging applies a step's writes once and removes its rows.",
        "staging.discarded-whole": "discard_staging drops a step's rows, or all, and nothing else.",
        "staging.steps-apart": "Rows of one step are not seen, promoted or discarded with another step.",
        "staging.orphans-by-age": "cleanup_orphaned_staging drops old rows of sessions that neither run nor wait in "
        "the middle of a step.",
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
        "pending.answer-moves-the-expiry": "An accepted answer moves the expiry of its root session if it says so.",
        "pending.answered-elsewhere": "A call of any kind may have been answered elsewhere: it is answered like any "
        "other, without what was said.",
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
        "pending.suspension-sees-children": "A suspending step goes on if a child that it waits for waits no more.",
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
        "effects.left-behind": "A rewind leaves the ledger's entries behind: a call that comes again begins anew.",
        "effects.given-up": "A lease renewed for no time is over: the outcome is unknown at once.",
        "effects.unbegun-refused": "Finishing or renewing a call that never began is refused.",
        "effects.stages-the-reply": "What rides with begin_effect is staged, also when the tool may not run.",
        "effects.consumes-the-approval": "begin_effect consumes the approval it runs on, in the same commit.",
        "effects.forgotten-by-a-step": "A step forgets the effects it names.",
        "effects.listed": "list_effects gives the session's ledger, oldest first, by when each was last begun.",
    },
)

_QUEUES = promised_by(
    "queue",
    {
        "queues.in-order": "Turns wait in the order in which they came, those of several processes too.",
        "queues.same-again": "A turn that waits already stays as it is; sent again after a stop, it says so.",
        "queues.behind-something": "Where its run began, or the session is free and nobody waits, no turn is put in.",
        "queues.bounded": "MOST_QUEUED turns may wait in a session; one more is refused.",
        "queues.taken-by-its-start": "A start that says so takes its turn from the queue in its own commit.",
        "queues.begun-or-dropped": "Of dropping a turn and beginning its run exactly one happens.",
        "queues.not-the-records": "What waits is nobody's version: a run that goes on is not disturbed by it.",
        "queues.go-with-their-session": "Deleting a session takes what waits in it along; a branch begins without.",
        "queues.found": "list_queues gives every session in which something waits, by id, and no other.",
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
        "commits.keeps-a-pause": "A step that leaves the session active leaves an operator's pause alone, and says so.",
        "commits.leaves-labels-alone": "User, tags, metadata and expiry that changed while a run goes on stay as they "
        "are, whatever the record of its next step says.",
        "commits.patches-metadata": "A step sets the metadata keys it names and removes those it names with None.",
        "commits.takes-the-stop": "A step may take the stop aimed at its run.",
        "commits.leaves-an-unseen-abort": "A step that ends its run as interrupted leaves an abort in place.",
        "commits.suspension-sees-a-stop": "A suspending step goes on if its run was asked to stop.",
        "commits.flat": "A commit takes as many statements on a long history as on a short one.",
    },
)

_SETTLING = promised_by(
    "settling",
    {
        "settle.ends-everything": "settle_session sets status, error, reason and messages, ends the current run and "
        "drops what waits, in one commit.",
        "settle.state-writes": "State writes are part of that commit: they stand with it, or nothing is settled.",
        "settle.ends-the-tree": "The same happens to every session below it that is not settled.",
        "settle.conflict-is-truthful": "If status, version or run is not the expected one, nothing changes and the "
        "answer says what is stored.",
    },
)

RUNS = requirements(
    _RUNS,
    _RECOVERY,
    _FENCE,
    _STAGING,
    _FLAGS,
    _PENDING,
    _EFFECTS,
    _QUEUES,
    _COMMITS,
    _SETTLING,
)
"""Runs, recovery, fencing, staging, stops, pending calls, effects and commits."""
