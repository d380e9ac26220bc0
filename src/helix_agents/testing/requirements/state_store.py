"""What every state store has to guarantee."""

from helix_agents.testing.requirements.registry import requirements
from helix_agents.testing.requirements.runs import RUNS
from helix_agents.testing.requirements.safety import SAFETY
from helix_agents.testing.requirements.sessions import SESSIONS

STATE_STORE = requirements(SESSIONS, RUNS, SAFETY)
"""Every requirement of the state store."""
