"""Options that mean the same thing on every command."""

import pytest

from helix_agents.cli.options import shown_url
from helix_agents.runtimes.dbos import instance


@pytest.mark.parametrize("shown", [shown_url, instance.shown_url])
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann:secret@db/helix", "postgresql://ann:***@db/helix"),
        ("postgresql://ann:se@cret@db/helix", "postgresql://ann:***@db/helix"),
        ("postgresql://ann@db/helix?password=secret&ssl=on", "postgresql://ann@db/helix?password=***&ssl=on"),
        ("postgresql://ann@db/helix?ssl=on&sslpassword=secret", "postgresql://ann@db/helix?ssl=on&sslpassword=***"),
        ("redis://:secret@db:6379/0", "redis://:***@db:6379/0"),
        ("postgresql://ann@db:5432/helix", "postgresql://ann@db:5432/helix"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_a_store_is_shown_without_its_password(shown, url: str, expected: str) -> None:
    assert shown(url) == expected
