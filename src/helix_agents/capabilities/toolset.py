"""The capabilities as tools of an agent: `Agent(capabilities=[state_capabilities()])`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.outcomes import DidNotHappen, Happened, Reconciled
from helix_agents.agent.tools import Tool, Wakeup
from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.capabilities.declaring import Capability
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.handlers.briefing import activity_of
from helix_agents.capabilities.housekeeping import look_after, sweep_state
from helix_agents.capabilities.inputs import signature_of
from helix_agents.capabilities.policy import Policy, Rule, check_list, check_matches
from helix_agents.capabilities.run_sessions import RunSession
from helix_agents.capabilities.scopes import JOURNAL
from helix_agents.capabilities.settings import AuditReads, Limits, StateSettings
from helix_agents.capabilities.values import parsed
from helix_agents.capabilities.waking import sentence_of, wakeups_of
from helix_agents.capabilities.watching import changes_after, end_subscriptions, moved, pass_over, subscriptions_of
from helix_agents.domain.capability_errors import CapabilityError
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.queued import asks_for_a_turn
from helix_agents.domain.records import JSON
from helix_agents.domain.transcript import hands_over
from helix_agents.ports.entries import EntryStore

if TYPE_CHECKING:
    from helix_agents.capabilities.vault import Vault

NOT_FOR_RUNS = ("session.create", "session.end", "approvals.list")
"""Not needed in a run: it has its own session, and its approvals are pending calls."""


class StateCapabilities:
    """Tools for state that outlives a step, a session or an agent, bound to the store of the executor that runs
    them."""

    def __init__(self, settings: StateSettings, only: Sequence[str] | None = None) -> None:
        self.settings = settings
        self._gateways: WeakKeyDictionary[EntryStore, Gateway] = WeakKeyDictionary()
        for pattern in only or ():
            check_matches("state_capabilities(only=…)", pattern)
        chosen = [each for each in CATALOGUE.values() if _is_chosen(each, only)]
        self.tools: tuple[Tool[..., Any], ...] = tuple(map(self._tool, chosen))
        self._names = frozenset(each.tool_name for each in chosen)
        self._briefs = any(each.name == "state.briefing.generate" for each in chosen)

    def gateway(self, store: EntryStore) -> Gateway:
        """The gateway to the capabilities on a store."""
        found = self._gateways.get(store)
        if found is None:
            found = self._gateways[store] = Gateway(store, self.settings)
        return found

    async def news(self, context: RunContext[Any, Any]) -> Sequence[str]:
        """Changes to keys that this session watches, once each: their cursors move in the step's commit."""
        store = context.link.entries.store
        if store is None:
            return ()
        found: list[str] = []
        for subscription_id, subscription, _ in await subscriptions_of(store, context.agent, context.session_id):
            events, after = await changes_after(store, subscription)
            if not events:
                await pass_over(store, subscription_id, subscription, after)
                continue
            found.append(sentence_of(events, subscription_id))
            context.link.entries.change(moved(subscription_id, after))
        return found

    async def rest(self, context: RunContext[Any, Any]) -> None:
        """The agent's next briefing starts where a run ends in which it called any of these tools."""
        known = self._briefs and context.link.entries.store is not None
        if known and self._were_called(context.transcript):
            context.link.entries.change(await activity_of(context.agent, self.settings))

    async def wakeups(self, store: EntryStore, agent: str) -> Sequence[Wakeup]:
        """Sessions that watch keys that have changed since they were last told."""
        return await wakeups_of(store, agent, self.settings.limits)

    async def sweep(self, store: EntryStore, is_over: Callable[[SessionId], Awaitable[bool]]) -> None:
        """Deliver notices, end idle sessions, and remove what is too old or no longer belongs to anything."""
        await look_after(store)
        await sweep_state(self.gateway(store))
        await end_subscriptions(store, is_over)

    def _were_called(self, transcript: Sequence[Message]) -> bool:
        """Whether the agent has called any of these tools since the user message that began the turn, or since it took
        the conversation over."""
        called = False
        for message in reversed(transcript):
            if isinstance(message, ToolMessage):
                if hands_over(message):
                    # All results of that reply are those of the agent before.
                    return False
                called = called or message.tool_name in self._names
            elif asks_for_a_turn(message) or (called and isinstance(message, AssistantMessage)):
                # The results of a reply are before it here, in whatever order.
                return called
        return called

    def _tool(self, capability: Capability) -> Tool[..., Any]:
        async def run(ctx: ToolContext[Any, Any], **inputs: Any) -> dict[str, JSON]:
            return await self._run(capability, ctx, inputs)

        async def needs_approval(inputs: Mapping[str, Any], ctx: RunContext[Any, Any]) -> bool:
            store = _store_of(ctx)
            return await self.gateway(store).needs_approval(_caller(ctx), capability.name, inputs)

        async def preview(inputs: Mapping[str, Any], ctx: RunContext[Any, Any]) -> dict[str, JSON]:
            return await self.gateway(_store_of(ctx)).preview(_caller(ctx), capability.name, inputs)

        async def reconcile(inputs: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
            # What the call made durable was remembered in the same transaction; without that, nothing happened.
            row = await _store_of(ctx).find(JOURNAL, ctx.idempotency_key)
            return DidNotHappen() if row is None else Happened(parsed(row.value)["result"])

        asks = self._may_ask(capability)
        run.__doc__ = capability.purpose
        return Tool(
            name=capability.tool_name,
            description=capability.description,
            input=signature_of(capability),
            function=run,
            effect=None if asks else "repeatable",
            require_approval=needs_approval if asks else False,
            unknown_outcome=reconcile if asks and capability.tier == "approval_required" else None,
            preview=preview if asks else None,
        )

    def _may_ask(self, capability: Capability) -> bool:
        """Whether any call could need a person: only then does the tool have to check each time."""
        if capability.tier == "approval_required":
            return True
        return any(_raises(rule) and rule.may_match(capability.name) for rule in self.settings.policy.rules)

    async def _run(self, capability: Capability, ctx: ToolContext[Any, Any], inputs: dict[str, Any]) -> dict[str, JSON]:
        store, link = _store_of(ctx), ctx.link.entries
        gateway = self.gateway(store)

        def tell(notice_id: str) -> None:
            ctx.emit("state.notification", {"capability": capability.name, "agent": ctx.agent, "id": notice_id})

        try:
            return await gateway.call(
                _caller(ctx),
                capability.name,
                inputs,
                session=RunSession(store, ctx.session_id, link, self.settings.limits),
                approval=ctx.approval,
                once=None if capability.reads_only else ctx.idempotency_key,
                audit=link.audit,
                on_notice=tell,
            )
        except CapabilityError as problem:
            raise ToolFailed(msgspec.json.encode(problem.as_data()).decode()) from problem


def state_capabilities(
    *,
    only: Sequence[str] | None = None,
    policy: Policy | Sequence[Rule] = (),
    limits: Limits | None = None,
    directory: str | Path | None = None,
    vault: "Vault | None" = None,
    export_roots: Sequence[str | Path] = (),
    briefing_roots: Sequence[str | Path] = (),
    webhooks: Sequence[str] = (),
    audit_reads: AuditReads = "batched",
) -> StateCapabilities:
    """Session, persistent and shared state, snapshots, briefings and backups, as tools.

    Args:
        only: Names of capabilities, or prefixes such as `state.session.*`. Defaults to all 24 and their companions.
        policy: Rules that make tiers stricter, or a whole `Policy`.
        limits: The limits of everything.
        directory: Where snapshots and backups are kept. Defaults to a folder beside the store.
        vault: The vault that encrypts backups.
        export_roots: Folders below which backups may be exported.
        briefing_roots: Folders whose changed files a briefing reports.
        webhooks: Addresses that are notified of calls that run with notice.
        audit_reads: Whether reads are audited in groups, one by one, or not at all.
    """
    lists = {"only": only, "export_roots": export_roots, "briefing_roots": briefing_roots, "webhooks": webhooks}
    for name, given in lists.items():
        check_list("state_capabilities", name, given)
    settings = StateSettings(
        limits=limits or Limits(),
        policy=policy if isinstance(policy, Policy) else Policy(rules=tuple(policy)),
        directory=None if directory is None else Path(directory),
        vault=vault,
        export_roots=tuple(map(Path, export_roots)),
        briefing_roots=tuple(map(Path, briefing_roots)),
        webhooks=tuple(webhooks),
        audit_reads=audit_reads,
    )
    return StateCapabilities(settings, only)


def _is_chosen(capability: Capability, only: Sequence[str] | None) -> bool:
    if capability.name in NOT_FOR_RUNS:
        return False
    if only is None:
        return True
    return any(
        capability.name == pattern or (pattern.endswith("*") and capability.name.startswith(pattern[:-1]))
        for pattern in only
    )


def _raises(rule: Rule) -> bool:
    return rule.tier == "approval_required" or (rule.rate is not None and rule.rate.then == "approval_required")


def _store_of(ctx: RunContext[Any, Any]) -> EntryStore:
    store = ctx.link.entries.store
    if store is None:
        raise DefinitionError(
            f"Agent {ctx.agent!r}",
            "its state capabilities have no place in this store; use sqlite:///…, postgresql://… or memory://.",
        )
    return store


def _caller(ctx: RunContext[Any, Any]) -> Caller:
    return Caller(
        agent=ctx.agent,
        face="agent",
        session_id=ctx.session_id,
        run_id=ctx.run_id,
        tool_call_id=ctx.tool_call_id if isinstance(ctx, ToolContext) else None,
    )
