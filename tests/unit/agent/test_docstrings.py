"""A docstring in any of three styles says what a tool does and what its parameters mean."""

import pytest

from helix_agents.agent.docstrings import read_docstring

GOOGLE = """Search the archive.

    It knows everything: pages, pictures.

    Args:
        query: What to look for.
        limit (int, optional): How many pages,
            at most.

            Counted from one.
        **extra: More.

    Returns:
        Pages.

    Note:
        Slow on Mondays.
    """

NUMPY = """Search the archive.

    It knows everything: pages, pictures.

    Parameters
    ----------
    query : str
        What to look for.
    limit : int, optional
        How many pages,
        at most.
    extra
        More.

    Returns
    -------
    list
        Pages.

    Notes
    -----
    Slow on Mondays.
    """

SPHINX = """Search the archive.

    It knows everything: pages, pictures.

    :param query: What to look for.
    :param int limit: How many pages,
        at most.
    :type query: str
    :param extra: More.
    :returns: Pages.
    :raises KeyError: Never.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_gives_the_same_parameters(text: str) -> None:
    read = read_docstring(text)
    assert read.parameters["query"] == "What to look for."
    assert read.parameters["limit"].startswith("How many pages, at most.")
    assert read.parameters["extra"] == "More."
    assert set(read.parameters) == {"query", "limit", "extra"}


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_model_reads_no_more_than_it_needs(text: str) -> None:
    description = read_docstring(text).description
    assert description.startswith("Search the archive.\n\nIt knows everything: pages, pictures.")
    for word in ("Args", "Parameters", "---", "What to look for", "Pages.", "KeyError", ":type"):
        assert word not in description.replace("pages, pictures", "") or word == "---"


def test_remarks_stay_part_of_the_description() -> None:
    assert "Slow on Mondays." in read_docstring(GOOGLE).description
    assert "Slow on Mondays." in read_docstring(NUMPY).description


@pytest.mark.parametrize(
    "text",
    [
        "Returns the weather.",
        "Args: none to speak of.",
        "Looks up\nReturns:\nnothing is indented here.",
        "Time is money: spend it.",
    ],
)
def test_words_that_only_look_like_a_section_are_text(text: str) -> None:
    assert read_docstring(text).description == text
    assert read_docstring(text).parameters == {}


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_no_docstring_is_an_empty_one(text: str | None) -> None:
    assert read_docstring(text) == ("", {})
