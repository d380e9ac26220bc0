"""Addresses, as far as they may be shown."""

import pytest

from helix_agents.domain.errors import InvalidStoreUrlError
from helix_agents.domain.urls import read_url, shown_url
from helix_agents.ports.backend import open_backend


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
        ("postgresql://ann:se/cr#e?t@db:5432/helix", "postgresql://ann:***@db:5432/helix"),
        ("postgresql://ann:12/34@db/helix", "postgresql://ann:***@db/helix"),
        ("redis://:se[cret@db/0", "redis://:***@db/0"),
        (
            "postgresql://db:5432/helix?application_name=ann@home",
            "postgresql://db:5432/helix?application_name=ann@home",
        ),
        ("postgresql://a:1@db,b:2/helix", "postgresql://a:***@db,b:2/helix"),
        (
            "postgresql://ann:one@pool/helix?listen_url=postgresql://ann:two@db/helix",
            "postgresql://ann:***@pool/helix?listen_url=postgresql://ann:***@db/helix",
        ),
    ],
)
def test_a_password_in_a_store_url_is_never_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "password", ["se/cret", "se#cret", "se?cret", "se[cret", "se]cret", "secret\N{FULLWIDTH COMMERCIAL AT}"]
)
@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
async def test_a_password_that_is_not_encoded_is_explained_and_not_shown(scheme: str, password: str) -> None:
    with pytest.raises(InvalidStoreUrlError) as refused:
        await open_backend(f"{scheme}://ann:{password}@db:1/0")
    told = str(refused.value)
    assert f"{scheme}://ann:***@db:1/0" in told
    assert "quote(password, safe='')" in told
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("url", ["postgresql://db:port/helix", "redis://db:99999", "redis://[::1"])
def test_an_address_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(InvalidStoreUrlError, match="host and port cannot be told apart"):
        read_url(url)


@pytest.mark.parametrize("url", ["postgresql://a:1,b:2/helix", "postgresql:///helix?host=/run", "redis://[::1]:6379/0"])
def test_an_address_that_can_be_read_is(url: str) -> None:
    assert read_url(url).scheme == url.partition(":")[0]


def test_what_a_server_said_with_a_full_stop_ends_with_one() -> None:
    told = str(InvalidStoreUrlError("redis://db", "the server refused us: Authentication required."))
    assert told == "Store URL 'redis://db' cannot be used: the server refused us: Authentication required."
