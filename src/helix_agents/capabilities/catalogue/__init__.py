"""Every capability: the 24 for state, and the companions they rely on."""

from helix_agents.capabilities.catalogue.backup import BACKUP
from helix_agents.capabilities.catalogue.briefing import BRIEFING
from helix_agents.capabilities.catalogue.companions import COMPANIONS
from helix_agents.capabilities.catalogue.persistent import PERSISTENT
from helix_agents.capabilities.catalogue.session import SESSION
from helix_agents.capabilities.catalogue.shared import SHARED
from helix_agents.capabilities.catalogue.snapshot import SNAPSHOT
from helix_agents.capabilities.declaring import Capability, capabilities_by_name

__all__ = ["CATALOGUE", "COMPANIONS", "STATE", "find_capability"]

STATE: tuple[Capability, ...] = (*SESSION, *PERSISTENT, *SHARED, *SNAPSHOT, *BRIEFING, *BACKUP)
"""The 24."""

CATALOGUE = capabilities_by_name(STATE, COMPANIONS)
_BY_TOOL = {capability.tool_name: capability for capability in CATALOGUE.values()}


def find_capability(name: str) -> Capability | None:
    """A capability by its name, or by the name of its tool."""
    return CATALOGUE.get(name) or _BY_TOOL.get(name)
