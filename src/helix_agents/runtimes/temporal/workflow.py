"""The workflow: the loop, with each effect as an activity. Temporal replays this code, so it does nothing else."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as EffectTimeoutError

with workflow.unsafe.imports_passed_through():
    from helix_agents.engine.effects import DriveRun, RunEnd, Within
    from helix_agents.engine.plain import EffectName, Plain, PlainOps, run_plain_turn, to_plain
    from helix_agents.runtimes.temporal.turns import LEAVING, PASSING, TIMED_OUT, TURN

SHORT_KINDS = ("rejected", "finish", "client", "child")
YEAR_SECONDS = 365 * 24 * 3600.0

# If Temporal may retry by itself, it waits this long in between; the dev server has no shorter wait.
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=1), timedelta(seconds=30)
# How often an effect that is not a tool is handed to another worker when its workers die.
_ATTEMPTS = 10


@workflow.defn(name=TURN)
class Turn:
    """One attempt of a run. Any error fails it, and a fresh attempt continues from the store."""

    def __init__(self) -> None:
        self._commits = 0

    @workflow.run
    async def run(self, order: dict[str, Any]) -> Plain:
        """Drive the run until it ends, until it waits for an answer, or until the history is long enough."""
        self._order = order
        end = await self._drive({name: order[name] for name in ("session_id", "run_id", "attempt")})
        if end.status == "yielded":
            workflow.continue_as_new(order)
        return to_plain(end)

    async def _drive(self, whose: Plain, within: Within | None = None) -> RunEnd:
        """Drive a run inline: the turn's own, or that of a child; a workflow that took over could not adopt another
        one."""
        ops = PlainOps(
            partial(self._perform, whose),
            should_yield=self._should_yield,
            drive=self._drive_child,
            within=within,
        )
        return await run_plain_turn(ops)

    async def _drive_child(self, run: DriveRun, within: Within) -> RunEnd:
        whose = {"session_id": run.session_id, "run_id": run.run_id, "attempt": run.attempt}
        return await self._drive({**whose, "within": to_plain(within)}, within)

    def _should_yield(self) -> bool:
        info = workflow.info()
        is_long = info.get_current_history_length() >= self._order["history_events"]
        # A workflow that has done nothing yet would be followed by another one that does nothing.
        return self._commits > 0 and (is_long or info.is_continue_as_new_suggested())

    async def _perform(self, whose: Plain, effect: EffectName, name: str, request: Plain) -> Plain:
        work = {**whose, "name": name, "request": request}
        answer = await self._short(effect, work) if _is_short(effect, request) else None
        if answer is None:
            answer = await self._long(effect, work)
        self._commits += effect == "commit"
        return answer

    async def _short(self, effect: EffectName, work: Plain) -> Plain | None:
        """Have it done right here; None if that was not possible, and another worker has to do it."""
        try:
            return await workflow.execute_local_activity(
                effect,
                work,
                start_to_close_timeout=timedelta(seconds=self._order["effect_seconds"]),
                retry_policy=RetryPolicy(maximum_attempts=1),
                result_type=dict[str, Any],
            )
        except (ActivityError, ApplicationError, EffectTimeoutError) as lost:
            # For an effect that was done right here, Temporal raises directly what is the cause with other effects.
            cause = lost.cause if isinstance(lost, ActivityError) else lost
            if not isinstance(cause, ApplicationError | EffectTimeoutError):
                raise
            return None

    async def _long(self, effect: EffectName, work: Plain) -> Plain:
        """Have it done by any worker: again if workers die, and as often as it takes if the trouble is temporary."""
        wait, attempts = 1, _attempts(effect, work["request"])
        while True:
            try:
                return await workflow.execute_activity(
                    effect,
                    work,
                    start_to_close_timeout=timedelta(seconds=self._limit(effect, work["request"])),
                    heartbeat_timeout=timedelta(seconds=self._order["heartbeat_seconds"]),
                    retry_policy=RetryPolicy(
                        initial_interval=_FIRST_WAIT, maximum_interval=_LONGEST_WAIT, maximum_attempts=attempts
                    ),
                    result_type=dict[str, Any],
                    summary=work["name"],
                )
            except ActivityError as lost:
                if isinstance(lost.cause, CancelledError):
                    # The workflow is being cancelled. The run continues in a fresh one, and so does the tool.
                    raise
                if isinstance(lost.cause, ApplicationError) and lost.cause.type == PASSING:
                    await workflow.sleep(wait)
                    wait = min(wait * 2, 30)
                elif isinstance(lost.cause, ApplicationError) and lost.cause.type == LEAVING:
                    continue
                elif effect == "run_calls" and "gave_up" not in work["request"]:
                    # The process that ran the tool is gone. The ledger has the last word, or else the model gets an
                    # error.
                    work, attempts = {**work, "request": {**work["request"], "gave_up": _why(lost)}}, _ATTEMPTS
                else:
                    raise

    def _limit(self, effect: EffectName, request: Plain) -> float:
        """How long one attempt may take. A tool with its own limit enforces it itself, and is cut off only if it does
        not."""
        if effect != "run_calls":
            return self._order["effect_seconds"]
        call = request["calls"][0]
        if call["kind"] in ("companion", "remote"):
            return YEAR_SECONDS
        limit = call.get("timeout_ms")
        return self._order["tool_seconds"] if limit is None else limit / 1000 + 2 * self._order["heartbeat_seconds"]


@workflow.defn(dynamic=True)
class TurnOfAnotherVersion:
    """A workflow that another version of the program started: it fails, and its run continues from the store."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Fail with an error that says so."""
        kind = workflow.info().workflow_type
        raise ApplicationError(f"{kind} belongs to another version; recovery goes on with its run", non_retryable=True)


def _is_short(effect: EffectName, request: Plain) -> bool:
    """Whether an effect only reads and writes the store, so that it need not be handed to another worker."""
    if effect != "run_calls":
        return effect != "ask_model"
    return request["calls"][0]["kind"] in SHORT_KINDS


def _attempts(effect: EffectName, request: Plain) -> int:
    return request["calls"][0].get("attempts", _ATTEMPTS) if effect == "run_calls" else _ATTEMPTS


def _why(lost: ActivityError) -> str:
    cause = lost.cause
    seen_by_server = isinstance(cause, EffectTimeoutError) and cause.type == TimeoutType.START_TO_CLOSE
    timed_out = seen_by_server or (isinstance(cause, ApplicationError) and cause.type == TIMED_OUT)
    return "tool_timeout" if timed_out else "tool_lost"
