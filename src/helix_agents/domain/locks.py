"""A lock as its holder knows it."""

from helix_agents.domain.records import Record

FORGOTTEN_AFTER_MS = 86_400_000
"""How long a store may keep a lock that is not held, and how often it looks for such locks."""


class Lock(Record):
    """Held until `expires_at` unless renewed. Tokens only grow: what the lock protects can refuse a smaller one."""

    key: str
    token: int
    owner: str
    expires_at: int
