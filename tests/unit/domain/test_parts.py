"""What counts as texts, images and files, what is refused, and how they are named where nobody can see them."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.messages import File, Image, Text, ToolMessage, parts_in
from helix_agents.domain.parts import (
    Content,
    data_of,
    in_json,
    in_plain,
    in_words,
    looks_like_parts,
    parts_of,
    parts_of_output,
    result_in_words,
)

MOON = Image.of(b"moon", "image/png", "moon.png")
PAPERS = File(url="https://example.com/papers.pdf", media_type="application/pdf")


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (MOON, (MOON,)),
        (Text(text="a"), (Text(text="a"),)),
        (["The moon:", MOON, Text(text="a"), PAPERS], (Text(text="The moon:"), MOON, Text(text="a"), PAPERS)),
        ((MOON, MOON), (MOON, MOON)),
        ("text", None),
        (["a", "b"], None),
        ([], None),
        ({"moon": 1}, None),
        ([{"type": "image", "url": "https://example.com"}], None),
    ],
)
def test_a_value_consists_of_parts_if_an_image_a_file_or_a_text_is_among_them(value: Any, parts: Any) -> None:
    assert parts_of(value) == parts
    if parts:
        content = in_json(parts)
        assert content.in_parts
        assert parts_in(content.content) == parts
        assert looks_like_parts(content.content)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([MOON, 3], "texts only, not a int"),
        ([MOON, {"a": 1}], "texts only, not a dict"),
        (Image(url=" "), r"write Image\.of\(data, media_type\)"),
        (Image(url=b"\x89PNG"), r"write Image\.of\(data, media_type\)"),  # pyright: ignore[reportArgumentType]
        (Image(url="data:image/png;base64,x"), "not valid base64"),
        (File(url="https://example.com", media_type=None), "media_type"),  # pyright: ignore[reportArgumentType]
        (["\ud800", MOON], "surrogates not allowed"),
        (Text(text=3), "Expected `str`"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_would_spoil_a_conversation_is_refused_with_a_cure(value: Any, problem: str) -> None:
    with pytest.raises(UnstorableValueError, match=problem):
        parts_of(value)


def test_the_data_of_a_file_is_read_back_from_its_address() -> None:
    assert data_of(MOON.url) == ("image/png", b"moon")
    assert data_of("data:text/plain,high%20tide") == ("text/plain", b"high tide")
    assert data_of("data:image/png;base64,bW9vbg") == ("image/png", b"moon")


def test_words_name_an_image_and_never_hold_its_data() -> None:
    words = in_words((Text(text="The moon:"), MOON, PAPERS, Image(url="data:;base64,bW9vbg==")))
    assert words.splitlines() == [
        "The moon:",
        "[image: moon.png, image/png, about 6 bytes]",
        "[file: application/pdf, https://example.com/papers.pdf]",
        "[image: about 6 bytes]",
    ]
    assert result_in_words(in_json((MOON,)).content, in_parts=True) == "[image: moon.png, image/png, about 6 bytes]"
    assert result_in_words({"a": 1}, in_parts=False) == {"a": 1}


def test_an_output_consists_of_parts_only_if_a_tool_made_it_of_parts() -> None:
    made = in_json((MOON,))
    result = ToolMessage(tool_call_id="c", tool_name="draw", content=made.content, in_parts=True)
    data = ToolMessage(tool_call_id="c", tool_name="draw", content=made.content)
    assert parts_of_output(made.content[0], [result]) == parts_of_output(made.content, [result]) == (MOON,)
    assert parts_of_output(made.content, [data]) == ()
    assert parts_of_output("text", [result]) == parts_of_output(None, [result]) == ()


def test_the_plain_form_of_parts_has_their_shape() -> None:
    image = {"type": "image", "url": MOON.url, "media_type": "image/png", "filename": "moon.png"}
    assert in_plain(MOON) == image
    assert in_plain(["a", MOON]) == ["a", image]
    assert in_plain({"a": 1}) == {"a": 1}
    assert Content("a") == ("a", False)


def test_parts_can_be_fields_of_users_types() -> None:
    class Report(BaseModel):
        title: str
        chart: Image

    report = Report(title="Moon", chart=MOON)
    assert Report.model_validate_json(report.model_dump_json()) == report
    schema = Report.model_json_schema()["properties"]["chart"]
    assert schema["required"] == ["type", "url"]
    with pytest.raises(ValidationError, match="Invalid value 'file'"):
        Report.model_validate({"title": "Moon", "chart": {"type": "file", "url": "x", "media_type": "y"}})
    either: TypeAdapter[Any] = TypeAdapter(Text | Image | File | str)
    assert either.validate_python({"type": "text", "text": "a"}) == Text(text="a")
    assert either.validate_python("a") == "a"
