"""The check that nothing larger than a store accepts gets in."""

from helix_agents.domain.errors import StateSizeExceededError
from helix_agents.domain.ids import SessionId


def check_size(session_id: SessionId, operation: str, size: int, limit: int | None, keys: tuple[str, ...] = ()) -> None:
    """Check that a size is within the limit; None means no limit.

    Raises:
        StateSizeExceededError: it is larger.
    """
    if limit is not None and size > limit:
        raise StateSizeExceededError(session_id, operation, size, limit, keys)
