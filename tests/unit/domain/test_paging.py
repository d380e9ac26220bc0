"""A page of a list: what is on it, and where it stands."""

from helix_agents import Page


def test_a_page_is_gone_through_as_what_is_on_it() -> None:
    page = Page(items=("newest", "older"), total=5, offset=0, limit=2)
    assert [item for item in page] == list(page) == ["newest", "older"]  # noqa: C416 - as a user writes it
    assert (len(page), page[0], page[-1], "older" in page) == (2, "newest", "older", True)
    assert page.has_more
    assert not Page(items=(), total=5, offset=5, limit=2)
