"""What the code of users sees of a run: the contexts of tools, instructions and hooks, and what they leave behind."""

from functools import partial
from typing import Any, NamedTuple

from helix_agents.agent.context import Approval, EntryLink, RunContext, RunInfo, RunLink, ToolContext, UsageReport
from helix_agents.agent.hook_events import HookEvent
from helix_agents.agent.hooks import HookFailure
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.surroundings import Surroundings
from helix_agents.domain.chunks import Custom
from helix_agents.domain.entries import Change
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites
from helix_agents.engine.desk import CHANGING, WORKSPACE, Note
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.ports.workspaces import WorkspaceFiles


class OfHooks(NamedTuple):
    """What the hooks of one event leave for the commit."""

    writes: StepWrites = NO_WRITES
    usage: tuple[UsageEntry, ...] = ()


class Notes:
    """What user code counted while it ran in a round of a step, and what state capabilities left for the commit."""

    def __init__(self, round: int = 0) -> None:
        self.round = round
        self.reports: list[UsageReport] = []
        self.entries: list[Change] = []
        self.audit: list[dict[str, JSON]] = []


def run_info(scope: RunScope, step: int) -> RunInfo:
    """Where something happens, without the state."""
    return RunInfo(**scope.about(step))


def run_context(scope: RunScope, step: int, draft: StateDraft[Any], notes: Notes) -> RunContext[Any, Any]:
    """The context of instructions, predicates and hooks."""
    return RunContext(
        **scope.about(step), link=_link(scope, step, draft, notes), deps=scope.deps, transcript=scope.transcript
    )


def tool_context(
    scope: RunScope,
    step: int,
    tool_call_id: ToolCallId,
    draft: StateDraft[Any],
    notes: Notes,
    approval: Approval | None = None,
) -> ToolContext[Any, Any]:
    """The context of a tool."""
    return ToolContext(
        **scope.about(step),
        link=_link(scope, step, draft, notes),
        deps=scope.deps,
        transcript=scope.transcript,
        tool_call_id=tool_call_id,
        idempotency_key=scope.idempotency_key(step, tool_call_id),
        approval=approval,
    )


def surrounding(scope: RunScope, step: int, event: HookEvent) -> Surroundings:
    """The hooks around a piece of work; the caller begins them when the work starts."""
    return scope.hooks.around(run_info(scope, step), event, partial(_report, scope))


async def fire(scope: RunScope, context: RunInfo, event: HookEvent) -> None:
    """Run the hooks of an event; one that raises is logged and the run continues.

    Raises:
        FailRun: a hook wants the run to fail.
    """
    if scope.hooks.wants(event.hook):
        await scope.hooks.fire(context, event, partial(_report, scope))


async def fire_with_draft(scope: RunScope, step: int, event: HookEvent, *before: StepWrites) -> OfHooks:
    """Run hooks that may change the state; returns what they changed and counted.

    Raises:
        FailRun: a hook wants the run to fail.
    """
    if not scope.hooks.wants(event.hook):
        return OfHooks()
    draft, notes = scope.draft(*before), Notes()
    await fire(scope, run_context(scope, step, draft, notes), event)
    return OfHooks(draft.writes(), counted(scope, step, notes))


def counted(scope: RunScope, step: int, notes: Notes) -> tuple[UsageEntry, ...]:
    """What user code counted, as entries."""
    return tuple(
        scope.usage_entry(
            step,
            source_type="custom",
            source_name=report.name,
            amount=report.amount,
            tokens=report.tokens,
            success=report.success,
            metadata=report.metadata,
        )
        for report in notes.reports
    )


def _link(scope: RunScope, step: int, draft: StateDraft[Any], notes: Notes) -> RunLink[Any]:
    return RunLink(
        draft=draft,
        emit=lambda name, data: scope.emit(scope.chunk(Custom, step, name=name, data=data)),
        record_usage=notes.reports.append,
        is_cancelled=scope.stop.requested.is_set,
        entries=_entry_link(scope, notes),
        memories=scope.services.memories,
        open_files=partial(_open_files, scope, step, notes.round),
    )


def _entry_link(scope: RunScope, notes: Notes) -> EntryLink:
    def change(each: Change) -> None:
        notes.entries.append(each)
        scope.carried.entries.append(each)

    return EntryLink(
        store=scope.services.entries,
        change=change,
        audit=notes.audit.append,
        step_changes=lambda: tuple(scope.carried.entries),
        session_exists=lambda: scope.services.store.session_exists(scope.session.session_id),
    )


async def _open_files(scope: RunScope, step: int, round: int, *, changes: bool) -> WorkspaceFiles:
    """The session's workspace. A note that it was opened, and that its files may change, is written first, so that it
    is known even if the process dies right after."""
    hand = scope.workspace
    files = await hand.open(scope.agent, scope.session)
    if hand.ref != scope.session.workspace_ref and not scope.carried.has(WORKSPACE):
        await scope.note(step, WORKSPACE, Note(round=round, workspace=hand.ref))
    if changes and not hand.files_changed:
        await scope.note(step, CHANGING, Note(round=round, changes_files=True))
    return files


def _report(scope: RunScope, failure: HookFailure) -> None:
    log_exception(
        "hook.failed",
        failure.error,
        hook=failure.hook,
        function=failure.function,
        session_id=scope.session.session_id,
        run_id=scope.run.run_id,
    )
