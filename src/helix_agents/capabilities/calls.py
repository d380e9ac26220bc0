"""One call of a capability: who makes it, what it may reach, and how its effects are made durable and audited."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import msgspec

from helix_agents.agent.context import Approval
from helix_agents.capabilities.declaring import Capability
from helix_agents.capabilities.policy import Decision
from helix_agents.capabilities.scopes import JOURNAL, OUTBOX, agent_scope
from helix_agents.capabilities.settings import Limits, StateSettings
from helix_agents.capabilities.values import parsed, shown_time
from helix_agents.domain.audit import entry_text
from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.entries import Change, Entry, EntryTransaction, Put, Transacted
from helix_agents.domain.records import JSON
from helix_agents.ports.clock import IdSource
from helix_agents.ports.entries import EntryStore

if TYPE_CHECKING:
    from helix_agents.capabilities.gateway import Gateway

Face: TypeAlias = Literal["agent", "python", "mcp", "operator"]

SECRET_NAMES = frozenset(
    {
        "api_key",
        "token",
        "password",
        "secret",
        "credential",
        "authorization",
        "private_key",
        "access_key",
        "refresh_token",
        "client_secret",
        "passphrase",
    }
)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who calls: always an agent's name, and through which interface. An operator is a person who needs no approval."""

    agent: str
    face: Face = "python"
    session_id: str | None = None
    run_id: str | None = None
    tool_call_id: str | None = None

    @property
    def is_operator(self) -> bool:
        """Whether the caller is a person, who decides for themselves."""
        return self.face == "operator"


class BoundSession(Protocol):
    """The state of one session, and of no other.

    Every method raises `SessionNotFound` if the session is gone.
    """

    async def check_alive(self) -> None:
        """Check that the session still exists."""
        ...

    async def get(self, key: str) -> str | None:
        """The value under a key."""
        ...

    async def set(self, key: str, value: str) -> str | None:
        """Store a value; returns the previous one."""
        ...

    async def delete(self, key: str) -> str | None:
        """Remove a key; returns its value."""
        ...

    async def keys(self, prefix: str) -> Sequence[str]:
        """The keys, sorted."""
        ...

    async def clear(self) -> int:
        """Remove everything; returns how many keys there were."""
        ...


@dataclass(kw_only=True)
class Call:
    """What a handler receives: checked inputs, and a store bound to the caller."""

    gateway: "Gateway"
    caller: Caller
    capability: Capability
    inputs: dict[str, Any]
    decision: Decision
    approval: Approval | None = None
    once: str | None = None
    bound_session: BoundSession | None = None
    audited: bool = field(default=False, init=False)
    noticed: bool = field(default=False, init=False)

    @property
    def store(self) -> EntryStore:
        return self.gateway.store

    @property
    def settings(self) -> StateSettings:
        return self.gateway.settings

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def ids(self) -> IdSource:
        return self.gateway.ids

    @cached_property
    def digest(self) -> str:
        """Two calls with the same digest are the same call."""
        return digest_of(self.capability, self.caller, self.inputs)

    @cached_property
    def shown_inputs(self) -> dict[str, JSON]:
        """The inputs without values and secrets."""
        return redacted(self.inputs)

    @property
    def own_scope(self) -> str:
        """The persistent state of the caller."""
        return agent_scope(self.caller.agent)

    async def commit(
        self, *changes: Change, audit: Mapping[str, JSON] | None = None, result: Mapping[str, JSON] | None = None
    ) -> Transacted:
        """Make changes, with the notice and the audit line of this call, in one transaction.

        `result` is remembered under the call's key, for a repetition after a crash.
        """
        written = await self.store.transact(
            EntryTransaction(
                changes=(*changes, *self.attached(result)),
                owner=self.caller.agent,
                audit=(self.audit_line("done", **(audit or {})),),
                once=self.once if result is None else None,
                digest=self.digest,
            )
        )
        self.audited = True
        return written

    def attached(self, result: Mapping[str, JSON] | None = None) -> tuple[Change, ...]:
        """The notice of a call that runs with notice, and its remembered result."""
        found: list[Change] = []
        if self.decision.tier == "notify":
            now = self.store.now_ms()
            found.append(Put(scope=OUTBOX, key=f"{now:013d}-{self.notice_id}", value=_text(self._notice(now))))
            self.noticed = True
        if result is not None and self.once is not None:
            # Of two attempts of one call, the second finds that there was a first, however late it comes.
            remembered = _text({"result": dict(result)})
            found.append(Put(scope=JOURNAL, key=self.once, value=remembered, expected_version=0))
        return tuple(found)

    async def remembered(self) -> dict[str, JSON] | None:
        """The result of an earlier attempt of this very call, if it got that far."""
        if self.once is None:
            return None
        row = await self.store.find(JOURNAL, self.once)
        if row is None:
            return None
        self.noticed = True
        return parsed(row.value)["result"]

    def was_done(self, conflict: VersionConflict) -> bool:
        """Whether another attempt of this very call came first."""
        return self.once is not None and conflict.context.get("key") == self.once

    @cached_property
    def notice_id(self) -> str:
        """The id of this call's notice; the same for every attempt."""
        identity = self.once if self.once is not None else self.ids.new("notice")
        return hashlib.sha256(identity.encode()).hexdigest()[:24]

    def _notice(self, now: int) -> dict[str, JSON]:
        """What the supervisor is told about a call."""
        return {
            "id": self.notice_id,
            "type": "state.notification",
            "capability": self.capability.name,
            "agent": self.caller.agent,
            "session_id": self.caller.session_id,
            "inputs": self.shown_inputs,
            "at": shown_time(now),
            "for_webhooks": bool(self.settings.webhooks),
        }

    def audit_line(self, status: str, /, **more: JSON) -> dict[str, JSON]:
        """What the audit log records about this call: who, what and by which rule, never a value."""
        line: dict[str, JSON] = {
            "at": shown_time(self.store.now_ms()),
            "agent": self.caller.agent,
            "face": self.caller.face,
            "capability": self.capability.name,
            "version": self.capability.version,
            "tier": self.decision.tier,
            "status": status,
            "arguments": self.shown_inputs,
            "digest": self.digest,
        }
        optional = {
            "session_id": self.caller.session_id,
            "run_id": self.caller.run_id,
            "tool_call_id": self.caller.tool_call_id,
            "rule": self.decision.rule,
            "approval_id": self.approval.approval_id if self.approval is not None else None,
        }
        return line | {name: value for name, value in optional.items() if value is not None} | more


def digest_of(capability: Capability, caller: Caller, inputs: Mapping[str, Any]) -> str:
    """Identifies a call by capability, version, caller and every input."""
    exact = {
        "capability": capability.name,
        "version": capability.version,
        "agent": caller.agent,
        "inputs": dict(inputs),
    }
    return hashlib.sha256(entry_text(exact).encode()).hexdigest()


def redacted(inputs: Mapping[str, Any]) -> dict[str, JSON]:
    """Inputs without values and secrets: a placeholder is kept that tells two of them apart."""
    shown: dict[str, JSON] = {}
    for name, value in inputs.items():
        if value is None:
            continue
        if name == "value" or name in SECRET_NAMES:
            text = msgspec.json.encode(value, order="sorted")
            shown[name] = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
        elif isinstance(value, dict):
            # The inputs of another call, about which policy.explain is asked.
            shown[name] = redacted(cast("dict[str, Any]", value))
        else:
            shown[name] = value
    return shown


def rows_of(entries: Sequence[Entry]) -> list[dict[str, JSON]]:
    """Rows of one of the capabilities' own scopes, each with its key as `id`."""
    return [{"id": entry.key, **parsed(entry.value)} for entry in entries]


def _text(value: JSON) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
