"""Results of tools with images and files: what a model's API accepts there, and what the model is told otherwise."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic_ai.messages import MultiModalContent

from helix_agents.domain.messages import File, Image, Part, Text
from helix_agents.domain.parts import data_of, is_data, named
from helix_agents.llm.pydantic_ai.attachments import attachment, media_type_of
from helix_agents.llm.pydantic_ai.picture_sizes import longest_side

_PICTURES = r"image/(png|jpeg|gif|webp)"
_TEXTS = re.compile(r"text/.*|application/(json|xml|yaml)")


@dataclass(frozen=True)
class _Reads:
    """The media types that an API accepts in the result of a call: sent as `data`, and by `address`.

    An address that an API does not fetch itself would be fetched by this process, wherever it leads. People may ask for
    that with their own messages; tools may not.

    A picture may have no more than so many characters as a data URL, and no longer side in pixels.
    """

    data: str
    address: str = "(?!)"
    most_characters: int | None = None
    most_pixels: int | None = None

    def accepts(self, part: Image | File) -> bool:
        kind = media_type_of(part)
        if not is_data(part.url):
            return re.fullmatch(self.address, kind) is not None
        return re.fullmatch(self.data, kind) is not None and (not kind.startswith("image/") or self._shows(part.url))

    def _shows(self, url: str) -> bool:
        if self.most_characters is not None and len(url) > self.most_characters:
            return False
        return self.most_pixels is None or longest_side(data_of(url)[1]) <= self.most_pixels


# An address without a media type counts as `image/*`.
_ADDRESS_OF_A_PICTURE = rf"{_PICTURES}|image/\*"
_DOCUMENTS = (
    r"application/(pdf|msword|vnd\.ms-excel|vnd\.openxmlformats-officedocument\.(wordprocessingml\.document"
    r"|spreadsheetml\.sheet))|text/(plain|csv|html|markdown)"
)
_CHAT = _Reads(rf"{_PICTURES}|application/pdf", _ADDRESS_OF_A_PICTURE)
_GOOGLE = _Reads(r"image/(png|jpeg|webp|heic|heif)|audio/.*|video/.*|application/pdf|text/.*")
_TEXT_ALONE = _Reads("(?!)")
# An API that is not listed is given everything.
_READS = {
    **dict.fromkeys(("alibaba", "azure", "fireworks", "heroku", "litellm", "moonshotai", "nebius"), _CHAT),
    **dict.fromkeys(("ollama", "openrouter", "ovhcloud", "together", "vercel", "vllm", "zai"), _CHAT),
    **dict.fromkeys(("cerebras", "deepseek", "sambanova"), _TEXT_ALONE),
    "anthropic": _Reads(
        rf"{_PICTURES}|application/pdf|text/plain",
        rf"{_ADDRESS_OF_A_PICTURE}|application/pdf",
        most_characters=10 << 20,
        most_pixels=8_000,
    ),
    "openai": _Reads(rf"{_PICTURES}|{_DOCUMENTS}", rf"{_ADDRESS_OF_A_PICTURE}|{_DOCUMENTS}"),
    "openai-chat": _CHAT,
    "google": _GOOGLE,
    "google-cloud": _GOOGLE,
    "bedrock": _Reads(rf"{_PICTURES}|{_DOCUMENTS}", most_characters=5 << 20, most_pixels=8_000),
    "groq": _Reads(_PICTURES, _ADDRESS_OF_A_PICTURE),
    "mistral": _CHAT,
}


def told(parts: Iterable[Part], api: str) -> list[str | MultiModalContent] | str:
    """A result as its model is given it, in order. A text stands for what the model cannot read, because nobody but a
    tool chose to send it, and a request that is refused would be refused for as long as the result is shown."""
    reads = _READS.get(api)
    pieces: list[str | MultiModalContent] = []
    for part in parts:
        if isinstance(part, Text):
            pieces += [part.text] if part.text.strip() else []
        elif reads is None or reads.accepts(part):
            pieces.append(attachment(part))
        else:
            pieces.append(_in_text(part))
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return pieces if len(texts) < len(pieces) else "\n".join(texts)


def _in_text(part: Image | File) -> str:
    """A file of text as its text; anything else by its name."""
    if is_data(part.url) and _TEXTS.fullmatch(media_type_of(part)):
        _, data = data_of(part.url)
        return f"{named(part)}\n{data.decode(errors='replace')}"
    return f"{named(part)} (this model cannot be shown it)"
