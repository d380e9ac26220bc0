"""What an operator decides about the state capabilities: limits, policy, folders, the vault and who is notified."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from helix_agents.capabilities.policy import Policy, check_list
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.urls import web_address

if TYPE_CHECKING:
    from helix_agents.capabilities.vault import Vault

MB = 1_000_000
HOUR_MS = 60 * 60 * 1000

AuditReads: TypeAlias = Literal["batched", "sync", "off"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of everything."""

    session_bytes: int = 50 * MB
    persistent_bytes: int = 100 * MB
    shared_bytes: int = 500 * MB
    versions: int = 100
    keys: int = 100_000
    key_bytes: int = 512
    value_bytes: int = 1 << 20
    depth: int = 64
    subscriptions: int = 100
    wakes_per_hour: int = 60
    answer_bytes: int = 256 * 1024
    snapshots: int = 50
    backups: int = 10
    daily_backups: int = 7
    weekly_backups: int = 4
    monthly_backups: int = 6
    events: int = 1_000_000
    event_age_ms: int = 7 * 24 * HOUR_MS
    alerts: int = 1_000
    session_idle_ms: int = HOUR_MS
    approval_hold_ms: int = 24 * HOUR_MS
    remembered_ms: int = 7 * 24 * HOUR_MS


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Everything that is not in the store.

    Args:
        limits: The limits of everything.
        policy: Rules that make tiers stricter.
        directory: Where snapshots and backups are kept. Defaults to a folder beside the store.
        vault: The vault that encrypts backups; without one they cannot be made.
        export_roots: Folders below which backups may be exported.
        briefing_roots: Folders whose changed files a briefing reports.
        webhooks: Addresses that are notified of calls that run with notice.
        audit_reads: Whether reads are audited in groups, one by one, or not at all.
    """

    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    directory: Path | None = None
    vault: "Vault | None" = None
    export_roots: Sequence[Path] = ()
    briefing_roots: Sequence[Path] = ()
    webhooks: Sequence[str] = ()
    audit_reads: AuditReads = "batched"

    def __post_init__(self) -> None:
        for name in ("export_roots", "briefing_roots", "webhooks"):
            check_list("StateSettings", name, getattr(self, name))
        for place, address in enumerate(self.webhooks, 1):
            if web_address(address) is None:
                # Not shown as it is: an address may hold a token.
                raise DefinitionError("StateSettings", f"address {place} in webhooks is not an http or https address.")
