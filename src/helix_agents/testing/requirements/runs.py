"""What every state store has to guarantee about runs, their steps and what interrupts them."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_RUNS = promised_by(
    "runs",
    {
        "runs.start-begins-a-turn": "start_run makes the run current and running, with every field it was given.",
        "runs.turns-contiguous": "Turns count 1, 2, 3 without gaps.",
        "runs.start-says-all-of-a-new-session": "The result of start_run describes a new session completely, so it "
        "need not be read back.",
        "runs.start-makes-the-session": "start_run with create creates the session in the same commit, or is refused "
        "because it exists.",
        "runs.start-settles-the-replaced": "The run that a new one replaces is settled, with status, reason and time.",
        "runs.start-refused-on-change": "start_run is refused if the session or its current run changed since they "
        "were read.",
        "runs.one-start-wins": "Of many concurrent starts based on the same read exactly one wins.",
        "runs.same-start-again": "The same start sent again gets the first result and changes nothing.",
        "runs.start-clears-the-outcome": "A start clears output, error, reason and interrupt context of the last turn.",
        "runs.step-count-restarts": "A start sets the step count to 0 unless told to keep it.",
        "runs.suspension-kept-on-request": "A start clears the suspension unless told to keep it, or given a new one.",
        "runs.start-abandons-on-request": "A start that abandons pending calls drops those of the whole tree.",
        "runs.start-drops-on-request": "A start that drops unanswered calls keeps the answers in its tree.",
        "runs.start-drops-what-rests": "A start of a session with nothing open leaves nothing staged; one that "
        "continues an open step keeps what is staged.",
        "runs.start-counts-resumes": "A start counts a resume only when told to.",
        "runs.start-carries-input": "A start appends its messages and applies its writes in the same commit.",
        "runs.start-under-a-parent": "A child's start writes its reference and staged rows at the parent.",
        "runs.start-needs-the-parents-fence": "A child's start under an outdated parent fence is refused and writes "
        "nothing.",
        "runs.recorded-from-outside": "create_run records a run that becomes current; a taken run id is refused.",
        "runs.updated": "update_run_status stores status, reason, error, output and steps; a terminal status sets the "
        "end time.",
        "runs.unknown-run": "get_run of an unknown run is None; updating it raises RunNotFoundError.",
        "runs.counted-by-user": "count_running counts the root sessions of a user, or of no user, that have a running "
        "run.",
        "runs.claimed-once": "Of many claimants of a run one wins: same run, next attempt, new owner.",
        "runs.claim-refused": "A run that ended, or is at another attempt, cannot be claimed.",
        "runs.claim-moves": "A claim may give a run the name that it has in another engine, or none.",
    },
)

_RECOVERY = promised_by(
    "recovery",
    {
        "recovery.orphans-found": "Running runs without an owner, or whose owner's lease has expired, are orphans.",
        "recovery.owned-runs-left-alone": "A run whose owner has a live lease is not an orphan.",
        "recovery.lease-found-while-alive": "A lease is found while it is alive on the store's clock.",
        "recovery.released-at-once": "A released lease makes its runs orphans at once.",
        "recovery.children-left-to-their-parent": "A child whose parent run is running is not an orphan.",
        "recovery.oldest-first": "Orphans are listed oldest first, at most as many as requested, page after page.",
        "recovery.one-query": "Finding orphans takes as many statements among many runs as among few.",
    },
)

_FENCE = promised_by(
    "fencing",
    {
        "fence.older-run-refused": "A run that was replaced cannot commit, stage or start anything.",
        "fence.older-attempt-refused": "An attempt that was replaced cannot commit, stage or start anything.",
        "fence.ended-run-refused": "A run that ended cannot commit, stage or start anything.",
        "fence.checked-first": "A wrong fence is reported before any other problem.",
    },
)

_STAGING = promised_by(
    "staging",
    {
        "staging.upsert": "Staging the same step and call again replaces the row.",
        "staging.call-order": "Staged rows are returned and applied in the model's call order.",
        "staging.promoted-once": "promote_staging applies a step's writes once and removes its rows.",
        "staging.discarded-whole": "discard_staging drops the rows of one step, or all rows, and nothing else.",
        "staging.steps-apart": "Rows of one step are not seen, promoted or discarded with another step.",
        "staging.orphans-by-age": "cleanup_orphaned_staging drops old rows of sessions that neither run nor wait in "
        "the middle of a step.",
    },
)

_FLAGS = promised_by(
    "interrupts",
    {
        "flags.aimed-at-the-current-run": "A stop is stored for the running run, with kind, reason and time.",
        "flags.nothing-running": "Without a running run nothing is stored, and the result says so.",
        "flags.taken-once": "Of many callers of check_interrupt_flag one gets the flag.",
        "flags.never-hit-the-next-run": "A stop aimed at one run is not seen by a later one.",
        "flags.abort-outranks-interrupt": "An abort replaces an interrupt; an interrupt does not replace an abort.",
        "flags.looking-leaves-it": "find_interrupt_flag leaves the flag in place; clear_interrupt_flag removes any.",
        "flags.seen-by-others": "A flag is seen by every other handle.",
        "flags.waiter-is-woken": "wait_for_interrupt returns the flag as soon as another handle set it.",
        "flags.waiter-times-out": "wait_for_interrupt gives up after its timeout.",
        "flags.waiting-is-cheap": "A waiting caller costs at most two statements a second.",
    },
)

_PENDING = promised_by(
    "pending calls",
    {
        "pending.announced-with-the-step": "A step's pending calls become visible with its commit.",
        "pending.found-at-root-or-owner": "A call is found through its owner or its root, and through no other "
        "session.",
        "pending.shown-in-the-session": "load_state shows a session's open calls; at the root it shows those of the "
        "tree, who owns them, and which are completed.",
        "pending.answered-once": "The first answer counts; a repeated one is reported as such, forever.",
        "pending.one-answer-wins": "Of many concurrent answers exactly one is accepted.",
        "pending.answer-says-what-is-next": "The result of an accepted answer says whether to resume, to wait for "
        "others, or that a run is running.",
        "pending.answer-moves-the-expiry": "An accepted answer moves the expiry of its root session if it says so.",
        "pending.answered-elsewhere": "A call of any kind may have been answered elsewhere: it counts as answered "
        "like any other, without the content of the answer.",
        "pending.unfit-answer-refused": "An answer of the wrong kind, or with another approval id, is refused.",
        "pending.unknown-call": "An answer to an unknown call is reported as such and raises nothing.",
        "pending.expired-once": "Each call past its deadline is marked expired for exactly one of many callers.",
        "pending.expired-found-in-order": "Calls past their deadline are listed oldest deadline first, for one tree "
        "if requested.",
        "pending.expired-still-answerable": "An expired call can be answered until a run has consumed the timeout.",
        "pending.late-answer-kept-once": "After a run has consumed the timeout, the first late answer is kept, once.",
        "pending.consumed-by-a-step": "A step consumes answered and expired calls.",
        "pending.dropped-by-a-failure": "A failing step drops its session's unanswered calls and keeps answered ones.",
        "pending.asked-again": "Announcing a consumed or dropped call again makes it wait; an open call is unchanged.",
        "pending.listed": "list_pending filters by session, root, user, tool, kind, state and age, newest first.",
        "pending.suspension-sees-answers": "A suspending step continues if there is an unconsumed answer in its tree.",
        "pending.suspension-sees-children": "A suspending step continues if a child that it waits for no longer waits.",
        "pending.suspension-lists-what-waits": "A suspending step returns the calls that are open in its tree.",
        "pending.unresumed-found": "Suspended roots with an unconsumed answer or timeout older than the grace period "
        "are listed, and no others.",
        "pending.one-query": "list_pending, deadline and unresumed queries take as many statements among many calls "
        "as among few.",
    },
)

_EFFECTS = promised_by(
    "effects",
    {
        "effects.intent-first": "begin_effect stores an intent with owner and lease, and the tool may run.",
        "effects.finished-result-reused": "Once an effect is finished, every later begin gets the recorded result.",
        "effects.busy-elsewhere": "While another owner's lease is alive, the tool may not run.",
        "effects.same-owner-continues": "The same owner may begin again, and gets a new lease.",
        "effects.unknown-after-a-death": "When the lease has expired the outcome is unknown; there is never a silent "
        "second run.",
        "effects.rerun-on-decision": "An unknown effect begins again only on request, with the same idempotency key.",
        "effects.one-begin-wins": "Of many owners that begin at the same time, one may run the tool.",
        "effects.result-recorded-once": "finish_effect records the first result, and later ones do not replace it.",
        "effects.late-result-kept": "A result that arrives after the effect was given up is kept as late.",
        "effects.renewed": "renew_effect extends the owner's lease, and tells any other caller that it is lost.",
        "effects.left-behind": "A rewind leaves the ledger's entries behind: a call that comes again starts anew.",
        "effects.given-up": "A lease renewed for no time is over: the outcome is unknown at once.",
        "effects.unbegun-refused": "Finishing or renewing a call that was never begun is refused.",
        "effects.stages-the-reply": "What is sent with begin_effect is staged, even if the tool may not run.",
        "effects.consumes-the-approval": "begin_effect consumes the approval that the call runs on, in the same "
        "commit.",
        "effects.forgotten-by-a-step": "A step forgets the effects it names.",
        "effects.listed": "list_effects returns the session's ledger, oldest first, by when each effect was last "
        "begun.",
    },
)

_QUEUES = promised_by(
    "queue",
    {
        "queues.in-order": "Turns wait in the order in which they arrived, including those of several processes.",
        "queues.same-again": "A turn that already waits is unchanged; if it is sent again after a stop, it says so, "
        "and if it is sent again to steer, it steers.",
        "queues.behind-something": "No turn is queued if its run has started, or if the session is free and no turn "
        "waits.",
        "queues.bounded": "At most MOST_QUEUED turns may wait in a session; one more is refused.",
        "queues.taken-by-its-start": "A start that says so takes its turn from the queue in its own commit.",
        "queues.begun-or-dropped": "Of dropping a turn and starting its run exactly one happens.",
        "queues.not-the-records": "A waiting turn does not change the session's version: it does not disturb a "
        "running run.",
        "queues.keep-alive": "A turn that is queued moves the expiry of its session, and never makes it end sooner.",
        "queues.taken-in": "A step commit that takes messages adds those that steer after its own, in order, and they "
        "leave the queue; a start that says so does the same; no other commit does, and none of another attempt.",
        "queues.taken-in-once": "A message is taken in by one run or starts one turn; the store knows which run took "
        "it for as long as the session lives, and never queues it again.",
        "queues.steering-first": "Turns that steer stand before the others.",
        "queues.changed": "A turn that waits can get other messages, begin or cease to steer, and be moved to the "
        "front; one that no longer waits cannot, and one that was changed is not started as it was.",
        "queues.fits": "A message that is larger than the store accepts is refused before it waits.",
        "queues.go-with-their-session": "Deleting a session deletes the turns that wait in it; a branch starts "
        "without them.",
        "queues.found": "list_queues returns every session in which a turn waits, by id, and no other.",
    },
)

_SCHEDULES = promised_by(
    "schedule",
    {
        "schedules.compare-and-set": "A save that replaces another revision than the stored one is refused; of many "
        "that replace the same one, one is stored.",
        "schedules.same-again": "A save that is sent again is answered as the first time, and changes nothing.",
        "schedules.found": "find_schedule and list_schedules, by id, give every schedule as it was last saved.",
        "schedules.due": "list_due_schedules gives those whose next time has come, earliest first, and no others.",
        "schedules.deleted": "A deleted schedule is gone and never due; a save that would replace it is refused.",
    },
)

_DELIVERIES = promised_by(
    "webhooks",
    {
        "deliveries.untold": "list_untold gives every run that was started to be told about, from the commit that "
        "ended it on, until somebody has seen to it; of runs that a parent drives, only those that wait.",
        "deliveries.told-once": "Of many that see to a run one is first, and its deliveries are added once; a run "
        "whose status changes later is untold again.",
        "deliveries.compare-and-set": "A save that replaces another revision than the stored one changes nothing; of "
        "many that replace the same one, one is made.",
        "deliveries.due": "list_due_deliveries gives what one webhook is owed and whose time has come, earliest first.",
        "deliveries.found": "find_delivery and list_deliveries, newest first, give every delivery as it was last "
        "saved.",
        "deliveries.forgotten": "forget_deliveries removes those that are over, and no others, when their time has "
        "come.",
    },
)

_COMMITS = promised_by(
    "step commit",
    {
        "commits.everything-together": "A step's messages, state, staging, checkpoint, pending calls, references and "
        "run status become visible with its commit.",
        "commits.same-again": "The same step of the same attempt sent again gets the first result and changes nothing.",
        "commits.same-again-after-the-end": "This also holds for the step that ended the run.",
        "commits.older-step-refused": "A step older than the last committed one is superseded.",
        "commits.stale-refused": "An outdated expected_version raises StaleStateError and nothing is stored.",
        "commits.only-the-named-keys": "With writes, only the keys they name change.",
        "commits.plain-record": "Without a commit, the record's custom state replaces the stored one, and staged "
        "writes to other keys are kept.",
        "commits.staged-before-own": "Staged writes apply first, in call order, then the step's own.",
        "commits.promotion-optional": "A commit may leave the step's staging alone.",
        "commits.warns": "A step whose calls contest a key says so in its result.",
        "commits.ends-the-run": "A step may end its run; the run then has status, reason, steps and end time.",
        "commits.keeps-a-pause": "A step that leaves the session active leaves an operator's pause alone, and says so.",
        "commits.leaves-labels-alone": "User, tags, metadata and expiry that changed while a run is running are kept, "
        "whatever the record of its next step says.",
        "commits.patches-metadata": "A step sets the metadata keys it names and removes those it names with None.",
        "commits.takes-the-stop": "A step may take the stop aimed at its run.",
        "commits.leaves-an-unseen-abort": "A step that ends its run as interrupted leaves an abort in place.",
        "commits.suspension-sees-a-stop": "A suspending step continues if its run was asked to stop.",
        "commits.flat": "A commit takes as many statements on a long history as on a short one.",
    },
)

_SETTLING = promised_by(
    "settling",
    {
        "settle.ends-everything": "settle_session sets status, error, reason and messages, ends the current run and "
        "drops what waits, in one commit.",
        "settle.state-writes": "State writes are part of that commit: they are stored with it, or nothing is settled.",
        "settle.ends-the-tree": "The same happens to every session below it that is not settled.",
        "settle.conflict-is-truthful": "If status, version or run is not the expected one, nothing changes and the "
        "result says what is stored.",
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
    _SCHEDULES,
    _DELIVERIES,
    _COMMITS,
    _SETTLING,
)
"""Runs, recovery, fencing, staging, stops, pending calls, effects and commits."""
