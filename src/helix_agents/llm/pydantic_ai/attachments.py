"""Images and files in Pydantic AI's format."""

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    MultiModalContent,
    VideoUrl,
)

from helix_agents.domain.messages import File, Image
from helix_agents.domain.parts import data_of, is_data

_URL_KINDS = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
_REAL_TYPES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}


def attachment(part: Image | File) -> MultiModalContent:
    """The image or file, with its data if its address holds it.

    Raises:
        ValueError: the data cannot be decoded.
    """
    name = part.filename
    if is_data(part.url):
        try:
            _, data = data_of(part.url)
        except ValueError as problem:
            raise ValueError(f"a data URL in the conversation is not valid base64 ({problem})") from problem
        return BinaryContent(data, media_type=media_type_of(part), identifier=name)
    kind = _URL_KINDS.get(media_type_of(part).partition("/")[0], DocumentUrl)
    return kind(part.url, media_type=_plain(part.media_type or "") or None, identifier=name)


def media_type_of(part: Image | File) -> str:
    """The media type as providers list it: browsers add the character set, and use invalid names."""
    given = _plain(part.media_type or "")
    if not given and is_data(part.url):
        given = _plain(part.url[5:].partition(",")[0])
    return given or ("image/*" if isinstance(part, Image) else "application/octet-stream")


def _plain(media_type: str) -> str:
    plain = media_type.partition(";")[0].strip().lower()
    return _REAL_TYPES.get(plain, plain)
