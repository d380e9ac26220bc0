"""What a Postgres URL may say, and what it may not."""

import pytest

from helix_agents.backends.postgres import parse_url
from helix_agents.domain.errors import InvalidStoreUrlError


def test_names_that_are_ours_are_settings_and_the_rest_goes_to_the_driver() -> None:
    url = "postgres://ann:secret@db.example:6432/agents?schema=helix&pool_size=3&pooler=true&sslmode=require"
    settings, others = parse_url(url + "&migrate=check&listen_url=postgresql://db.example:5432/agents")
    assert settings.dsn == "postgresql://ann:secret@db.example:6432/agents?sslmode=require"
    assert (settings.schema, settings.pool_size, settings.pooler) == ("helix", 3, True)
    assert settings.listen_dsn == settings.listen_url == "postgresql://db.example:5432/agents"
    assert others == {"migrate": "check"}


def test_a_keyword_wins_over_the_url_and_is_used_up() -> None:
    options = {"schema": "mine", "clock": object()}
    settings, _ = parse_url("postgresql:///agents?schema=helix", options)
    assert settings.schema == "mine"
    assert list(options) == ["clock"]


def test_behind_a_pooler_notifications_need_a_url_of_their_own() -> None:
    settings, _ = parse_url("postgresql://db/agents?pooler=1")
    assert settings.listen_dsn is None
    assert parse_url("postgresql://db/agents")[0].listen_dsn == "postgresql://db/agents"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://db/agents", "start with postgresql://"),
        ("postgresql://db/agents?schema=Robert';--", "lower-case letters"),
        (f"postgresql://db/agents?schema={'x' * 41}", "at most 40"),
        ("postgresql://db/agents?pool_size=many", "not a number"),
        ("postgresql://db/agents?pool_size=0", "at least 1"),
        ("postgresql://db/agents?pooler=perhaps", "neither true nor false"),
        ("postgresql://db/agents?migrate=never", "neither auto nor check"),
    ],
)
def test_a_url_that_cannot_be_read_says_why(url: str, says: str) -> None:
    with pytest.raises(InvalidStoreUrlError) as refusal:
        parse_url(url)
    assert says in str(refusal.value)


def test_no_error_shows_a_password() -> None:
    with pytest.raises(InvalidStoreUrlError) as refusal:
        parse_url("postgresql://ann:secret@db/agents?pool_size=x")
    assert "secret" not in str(refusal.value)
    assert "secret" not in parse_url("postgresql://ann:secret@db/agents")[0].shown
