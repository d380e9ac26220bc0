"""The loop: one turn of an agent, the same on every runtime.

It reads no clock, makes no ids, does no I/O and starts nothing in parallel. Given the same answers it asks for the same
effects in the same order, which is what lets a durable engine replay it.
"""

from helix_agents.engine.effects import (
    Advance,
    Announce,
    Ask,
    Batch,
    CallOutcome,
    CommitRequest,
    Fail,
    OpenBatch,
    Ops,
    PlannedCall,
    Reply,
    RunEnd,
    RunFailed,
    StepOutcome,
    Stop,
    Stopped,
    Suspend,
)


async def run_turn(ops: Ops) -> RunEnd:
    """Drive a run from its position in the store until it ends, suspends, is superseded or yields to a fresh driver.

    Every pass through the loop ends in one commit, unless the driver yields first. Without an open batch, a pass starts
    the next step by asking the model; otherwise it takes another look at the open calls. The commit's answer decides
    how to continue.
    """
    position = await ops.open()
    if position.ended is not None:
        return RunEnd(status=position.ended)
    step, batch = position.step, position.open_batch
    while True:
        if batch is None:
            if ops.should_yield():
                return RunEnd(status="yielded")
            step += 1
            match await ops.ask_model(Ask(step=step)):
                case Reply(calls=calls):
                    batch, outcome = await _work_off(ops, OpenBatch(step=step, calls=calls))
                case Stopped():
                    batch, outcome = OpenBatch(step=step), Stop()
                case RunFailed(code=code):
                    batch, outcome = OpenBatch(step=step), Fail(code=code)
        else:
            batch, outcome = await _work_off(ops, batch)
        ack = await ops.commit(CommitRequest(batch=batch, outcome=outcome))
        match ack.next:
            case "continue":
                batch = None
            case "again":
                batch = batch.next_round()
            case "superseded":
                return RunEnd(status="superseded")
            case "ended":
                assert ack.status is not None
                return RunEnd(status=ack.status)


async def _work_off(ops: Ops, batch: OpenBatch) -> tuple[OpenBatch, StepOutcome]:
    """Run the open calls of a batch: the regular ones side by side, then `finish_with` tools one after another.

    Companion calls are left to the round after the commit that announces them. Calls that wait for an answer are
    announced in that same commit. Handoffs are left to the commit that finds all other calls settled.
    """
    later = ("finish_with", "handoff") if batch.round > 0 else ("finish_with", "companion", "handoff")
    batch, outcome = await _run(ops, batch, tuple(call for call in batch.unsettled if call.kind not in later))
    announces = batch.round == 0 and any(call.kind == "companion" for call in batch.unsettled)
    if announces and not isinstance(outcome, Stop):
        return batch, Announce()
    if outcome is not None:
        return batch, outcome
    for call in batch.unsettled:
        if call.kind == "handoff":
            continue
        # A tool that finishes the run sees the results of all others, so it comes after them.
        batch, outcome = await _run(ops, batch, (call,))
        if outcome is not None:
            return batch, outcome
    return batch, Advance()


async def _run(ops: Ops, batch: OpenBatch, calls: tuple[PlannedCall, ...]) -> tuple[OpenBatch, StepOutcome | None]:
    """Run calls of a batch side by side; returns the batch with their results recorded, and the step's outcome unless
    all of them are settled."""
    if not calls:
        return batch, None
    outcomes = await ops.run_batch(Batch(step=batch.step, round=batch.round, calls=calls))
    return batch.settle(outcomes), _verdict(outcomes)


def _verdict(outcomes: tuple[CallOutcome, ...]) -> StepOutcome | None:
    """A stop outranks a suspension; None if every call has its result."""
    states = {outcome.state for outcome in outcomes}
    if "stopped" in states:
        return Stop()
    return Suspend() if "waiting" in states else None
