"""Addresses, as far as they may be shown."""

import pytest

from helix_agents.domain.urls import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db/helix", "postgresql://ann:***@db/helix"),
        ("postgresql://ann:se@cret@db/helix", "postgresql://ann:***@db/helix"),
        ("postgresql://ann@db/helix?password=secret&ssl=on", "postgresql://ann@db/helix?password=***&ssl=on"),
        ("postgresql://ann@db/helix?ssl=on&sslpassword=secret", "postgresql://ann@db/helix?ssl=on&sslpassword=***"),
        ("redis://:secret@db:6379/0", "redis://:***@db:6379/0"),
        ("postgresql://ann@db:5432/helix", "postgresql://ann@db:5432/helix"),
        ("sqlite:///helix.db", "sqlite:///helix.db"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_a_password_in_a_store_url_is_never_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
