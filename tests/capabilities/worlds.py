"""A store with a vault, folders and settings, opened as often and as whoever a test needs."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helix_agents.capabilities.approvals import ApprovalRow, decide_approval
from helix_agents.capabilities.client import StateClient, open_state
from helix_agents.capabilities.policy import Policy
from helix_agents.capabilities.settings import Limits, StateSettings
from helix_agents.capabilities.vault import Argon2Cost, Vault
from helix_agents.domain.capability_errors import ApprovalPending

CHEAP = Argon2Cost(memory_kib=64, passes=1, lanes=1)
PASSPHRASE = "a long enough passphrase"
_numbers = itertools.count(1)


@dataclass
class World:
    """Where a test happens."""

    folder: Path
    url: str
    vault: Vault
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)

    @classmethod
    async def make(cls, folder: Path, kind: str = "sqlite", **options: Any) -> "World":
        """A world on a kind of store, or at a URL."""
        places = {"sqlite": f"sqlite:///{folder}/helix.db", "memory": f"memory://world-{next(_numbers)}"}
        for name in ("out", "watched"):
            (folder / name).mkdir()
        vault = Vault(folder / "vault.json", cost=CHEAP)
        await vault.init(PASSPHRASE)
        return cls(folder, places.get(kind, kind), vault, **options)

    def settings(self, **changes: Any) -> StateSettings:
        given = {
            "limits": self.limits,
            "policy": self.policy,
            "directory": self.folder / "files",
            "vault": self.vault,
            "export_roots": (self.folder / "out",),
            "briefing_roots": (self.folder / "watched",),
        }
        return StateSettings(**(given | changes))

    @asynccontextmanager
    async def open(self, agent: str = "ann", *, face: Any = "python", **options: Any) -> AsyncIterator[StateClient]:
        changes = options.pop("settings", {})
        async with open_state(self.url, agent=agent, face=face, settings=self.settings(**changes), **options) as state:
            yield state

    def files(self, kind: str) -> list[Path]:
        found = self.folder / "files" / "default" / kind
        return sorted(found.iterdir()) if found.exists() else []


async def approved(state: StateClient, name: str, /, **inputs: Any) -> ApprovalRow:
    """Ask, have a person agree, and answer how it ended."""
    try:
        await state.call(name, **inputs)
    except ApprovalPending as pending:
        return await decide_approval(state.gateway, pending.context["approval_id"], approved=True, by="ada")
    raise AssertionError(f"{name} did not ask")
