"""The single way in: every call through every interface is checked, judged, run and audited here."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from helix_agents.agent.context import Approval
from helix_agents.capabilities.calls import BoundSession, Call, Caller, digest_of
from helix_agents.capabilities.catalogue import find_capability
from helix_agents.capabilities.declaring import Capability, Hint
from helix_agents.capabilities.handlers import CHECKS, HANDLERS, PREVIEWS
from helix_agents.capabilities.inputs import check_inputs
from helix_agents.capabilities.minted_sessions import MintedSession
from helix_agents.capabilities.policy import Decision, decide
from helix_agents.capabilities.rates import count_calls
from helix_agents.capabilities.settings import StateSettings
from helix_agents.capabilities.troubles import meaning
from helix_agents.domain.capability_errors import (
    ApprovalPending,
    CapabilityError,
    InvalidInput,
    PolicyDenied,
    VersionConflict,
)
from helix_agents.domain.entries import EntryTransaction
from helix_agents.domain.errors import HelixError
from helix_agents.domain.records import JSON
from helix_agents.engine.log import log_exception
from helix_agents.ports.clock import IdSource
from helix_agents.ports.entries import EntryStore
from helix_agents.system import RandomIds

READ_BATCH_SECONDS = 0.05

_GENERIC = {
    "DatabaseError": Hint(action="retry", description="Retry the operation. If the error persists, check disk health."),
    "VersionConflict": Hint(action="retry", description="Read the key again and retry with the new version."),
    "InvalidInput": Hint(action="fix_input", description="Change the input as the message says, and call again."),
    "SessionNotFound": Hint(
        action="reconnect", description="Use session.create to get a new session.", capability="session.create"
    ),
    "PolicyDenied": Hint(
        action="explain",
        description="Use policy.explain to see which rule decides.",
        capability="policy.explain",
        inputs={"capability": "{capability}"},
    ),
    "ApprovalPending": Hint(
        action="wait",
        description="Use approvals.list to see what was decided; an approved call runs by itself.",
        capability="approvals.list",
        inputs={"approval_id": "{approval_id}"},
    ),
}


class Gateway:
    """Capabilities on one store. Close it, so that reads that still have to be audited are."""

    def __init__(
        self, store: EntryStore, settings: StateSettings | None = None, *, ids: IdSource | None = None
    ) -> None:
        self.store = store
        self.settings = settings or StateSettings()
        self.ids: IdSource = ids or RandomIds()
        self._unaudited: list[dict[str, JSON]] = []
        self._auditing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        # What was examined to decide whether to ask is shown to the person who is asked.
        self._previews: dict[str, dict[str, JSON]] = {}
        self.put_off: dict[str, int] = {}
        """Notices that an address did not accept, and when this process tries them again."""
        self.forgot_at: int | None = None
        """When this process last went through remembered results to forget old ones."""

    async def call(
        self,
        caller: Caller,
        name: str,
        inputs: Mapping[str, Any],
        *,
        session: BoundSession | None = None,
        approval: Approval | None = None,
        once: str | None = None,
        audit: Callable[[dict[str, JSON]], object] | None = None,
        on_notice: Callable[[str], object] | None = None,
    ) -> dict[str, JSON]:
        """Make a call; its result has every declared output.

        `approval` says that a person approved exactly this call. `once` makes a repetition harmless. What is not
        audited in its own transaction goes to `audit`, or is collected and written soon. `on_notice` gets the id of the
        notice that a call with notice left.

        Raises:
            CapabilityError: it could not be done; the error says what to do about it.
        """
        capability = _known(name)
        call: Call | None = None
        try:
            given = check_inputs(capability, inputs)
            # A call that a person approved for a caller without a run was counted when it was requested.
            counted = approval is not None and caller.face != "agent"
            decision = await self.judge(caller, capability, given, counting=not counted, counted=counted)
            call = Call(
                gateway=self,
                caller=caller,
                capability=capability,
                inputs=given,
                decision=decision,
                approval=approval,
                once=once,
            )
            call.bound_session = session or self._session_of(call)
            await self._admit(call)
            answer = await self._handle(call)
            if decision.tier == "notify" and not call.noticed:
                # A call for which a rule requires a notice need not have written anything itself.
                await call.commit()
        except (HelixError, OSError) as problem:
            told = self._explained(capability, inputs, problem)
            if call is not None:
                await self._audit(call, call.audit_line("failed", error=told.name), audit, told)
            raise told from problem
        if not call.audited:
            await self._audit(call, call.audit_line("done"), audit, None)
        if decision.tier == "notify" and on_notice is not None:
            on_notice(call.notice_id)
        return answer

    async def judge(
        self,
        caller: Caller,
        capability: Capability,
        inputs: Mapping[str, Any],
        *,
        counting: bool = False,
        counted: bool = False,
    ) -> Decision:
        """The tier of a call; with `counting`, it is counted. A call that was `counted` and judged before is not judged
        by how many there are now."""
        rules = [] if counted else self.settings.policy.rates(capability, caller.agent, inputs)
        counts = await count_calls(self.store, caller.agent, rules, counting=counting) if rules else {}
        return decide(self.settings.policy, capability, caller.agent, inputs, counts, by_operator=caller.is_operator)

    async def needs_approval(self, caller: Caller, name: str, inputs: Mapping[str, Any]) -> bool:
        """Whether a person has to be asked. A call that could not succeed anyway is not worth their time."""
        capability = _known(name)
        decision = await self.judge(caller, capability, inputs)
        if decision.tier != "approval_required":
            return False
        try:
            self._previews[digest_of(capability, caller, inputs)] = await self._preview(caller, capability, inputs)
        except (HelixError, OSError):
            return False
        return True

    async def preview(self, caller: Caller, name: str, inputs: Mapping[str, Any]) -> dict[str, JSON]:
        """What the deciding person is shown: what the call would do, and to whom.

        Raises:
            CapabilityError: the call could not succeed.
        """
        capability = _known(name)
        known = self._previews.pop(digest_of(capability, caller, inputs), None)
        if known is not None:
            return known
        try:
            return await self._preview(caller, capability, inputs)
        except (HelixError, OSError) as problem:
            raise self._explained(capability, inputs, problem) from problem

    async def flush(self) -> None:
        """Write the collected audit lines; those that cannot be written now are kept for the next time."""
        lines, self._unaudited = self._unaudited, []
        if not lines:
            return
        try:
            await self.store.transact(EntryTransaction(audit=tuple(lines)))
        except BaseException:
            # They may have been written all the same; a duplicate line is better than a missing one.
            self._unaudited = [*lines, *self._unaudited]
            raise

    async def close(self) -> None:
        """Write everything that is still pending; the store stays open."""
        if self._auditing is not None:
            self._hurry.set()
            await asyncio.wait((self._auditing,))
        await self.flush()

    # -- inside

    async def _handle(self, call: Call) -> dict[str, JSON]:
        handler = HANDLERS[call.capability.name]
        try:
            return await handler(call)
        except VersionConflict as conflict:
            if not call.was_done(conflict):
                raise
            # What the other attempt remembered is the result of this one.
            return await handler(call)

    async def _admit(self, call: Call) -> None:
        """Let a call pass, or say why not: never an unapproved run, whatever has changed since approval was
        requested."""
        tier = call.decision.tier
        if tier == "blocked":
            raise PolicyDenied(
                f"{call.capability.name} is not allowed: {call.decision.reason}.", {"rule": call.decision.rule}
            )
        await self._check(call)
        if tier != "approval_required" or call.approval is not None or call.caller.is_operator:
            return
        if call.caller.face == "agent":
            raise ApprovalPending("A person has to approve this call: call it again to have them asked.", {})
        # Approved calls run through a gateway, so that module imports this one.
        from helix_agents.capabilities.approvals import request_approval

        pending = await request_approval(self, call)
        raise ApprovalPending(
            f"{call.capability.name} waits for a person ({pending}); it runs by itself when approved.",
            {"approval_id": pending, "status": "pending_approval"},
        )

    async def _preview(self, caller: Caller, capability: Capability, inputs: Mapping[str, Any]) -> dict[str, JSON]:
        decision = await self.judge(caller, capability, inputs)
        call = self._looking(caller, capability, inputs, decision)
        await self._check(call)
        shown = await PREVIEWS[capability.name](call) if capability.name in PREVIEWS else {}
        about: dict[str, JSON] = {"capability": capability.name, "agent": caller.agent, "reason": decision.reason}
        return about | shown

    async def _check(self, call: Call) -> None:
        """Check what can be found out before anything is done."""
        check = CHECKS.get(call.capability.name)
        if check is not None:
            await check(call)

    def _looking(self, caller: Caller, capability: Capability, inputs: Mapping[str, Any], decision: Decision) -> Call:
        call = Call(gateway=self, caller=caller, capability=capability, inputs=dict(inputs), decision=decision)
        call.bound_session = self._session_of(call)
        return call

    def _session_of(self, call: Call) -> BoundSession | None:
        if call.caller.session_id is None:
            return None
        return MintedSession(self.store, call.caller, self.settings.limits, call.commit)

    def _explained(
        self, capability: Capability, inputs: Mapping[str, Any], problem: HelixError | OSError
    ) -> CapabilityError:
        """The problem as an error of the capability, with what to do about it."""
        told = meaning(problem, capability)
        known: dict[str, Any] = {**inputs, **told.context, "capability": capability.name}
        largest = told.context.get("largest_keys")
        if largest:
            known["largest_key"] = largest[0]["key"]
            known["quota_request"] = (
                f"{told.context['used']} of {told.context['limit']} bytes are used and {told.context['needed']} more"
                f" are needed for {capability.name}; please raise the quota."
            )
        case = capability.error_case(told.name)
        hints = case.recovery if case is not None else ((_GENERIC[told.name],) if told.name in _GENERIC else ())
        return type(told)(told.message, told.context, tuple(hint.filled(known) for hint in hints))

    async def _audit(
        self,
        call: Call,
        line: dict[str, JSON],
        audit: Callable[[dict[str, JSON]], object] | None,
        problem: CapabilityError | None,
    ) -> None:
        quiet = self.settings.audit_reads == "off" and call.capability.reads_only and problem is None
        if quiet or (problem is not None and problem.name == "DatabaseError"):
            return
        if audit is not None:
            audit(line)
            return
        self._unaudited.append(line)
        if self.settings.audit_reads == "sync":
            await self.flush()
        elif self._auditing is None or self._auditing.done():
            self._hurry = asyncio.Event()
            self._auditing = asyncio.create_task(self._audit_soon(self._hurry))

    async def _audit_soon(self, hurry: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_BATCH_SECONDS):
                await hurry.wait()
        try:
            await self.flush()
        except HelixError as problem:
            log_exception("audit.not_written", problem, lines=len(self._unaudited))


def _known(name: str) -> Capability:
    capability = find_capability(name)
    if capability is None:
        raise InvalidInput(f"There is no capability {name!r}.", {"capability": name[:80]})
    return capability
