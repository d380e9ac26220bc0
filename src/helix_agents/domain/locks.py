"""A lock as its holder knows it."""

from helix_agents.domain.records import Record


class Lock(Record):
    """Held until `expires_at` unless renewed. Tokens only grow: what the lock protects can refuse a smaller one."""

    key: str
    token: int
    owner: str
    expires_at: int
