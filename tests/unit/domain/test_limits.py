"""What is larger than a store takes stays outside."""

import pytest

from helix_agents.domain.errors import StateSizeExceededError
from helix_agents.domain.limits import check_size


def test_a_size_within_the_limit_passes():
    check_size("s-1", "message", 10, 10)
    check_size("s-1", "message", 10**12, None)


def test_a_larger_size_is_refused_with_all_it_takes_to_act():
    with pytest.raises(StateSizeExceededError) as refused:
        check_size("s-1", "state", 11, 10, ("notes",))
    error = refused.value
    assert (error.session_id, error.operation, error.size_bytes, error.limit_bytes, error.keys) == (
        "s-1",
        "state",
        11,
        10,
        ("notes",),
    )
