"""Skills as files: read from folders while agents run, and fetched into them by a command."""

from helix_agents.skills.folder import SkillFolder

__all__ = ["SkillFolder"]
