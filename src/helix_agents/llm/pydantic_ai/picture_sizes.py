"""How large a picture is, read from its first bytes: some providers refuse pictures with a side that is too long."""


def longest_side(data: bytes) -> int:
    """The longer side of a picture in pixels; 0 if it cannot be told."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return max(_big(data[16:20]), _big(data[20:24]))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return max(_little(data[6:8]), _little(data[8:10]))
    if data.startswith(b"\xff\xd8"):
        return _of_jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _of_webp(data)
    return 0


def _of_jpeg(data: bytes) -> int:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        # A frame begins; three of the markers in this range say something else.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return max(_big(data[at + 5 : at + 7]), _big(data[at + 7 : at + 9]))
        at += 1 if marker == 0xFF else 2 + _big(data[at + 2 : at + 4])
    return 0


def _of_webp(data: bytes) -> int:
    match data[12:16]:
        case b"VP8X":
            return 1 + max(_little(data[24:27]), _little(data[27:30]))
        case b"VP8L":
            sides = _little(data[21:25])
            return 1 + max(sides & 0x3FFF, sides >> 14 & 0x3FFF)
        case b"VP8 ":
            return max(_little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF)
        case _:
            return 0


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
