"""The payload of a backup: Tink's AES-GCM-HKDF streaming AEAD around any number of bytes, in bounded memory.

The construction and its implementation are Tink's; this module gives it our key and turns its file objects into two
small classes. Each segment's nonce contains its number and whether it is the last, so segments cannot be swapped,
repeated, left out or moved to another file, and a missing end is noticed.
"""

import io
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO, cast

READ_BYTES = 1 << 20
_HEADER_BYTES = 40
_TAG_BYTES = 16


class PayloadDamagedError(Exception):
    """The bytes are not those that were written under this key and this header."""


class EncryptingPayload:
    """Encrypts what is written, and passes the ciphertext on."""

    def __init__(self, write: Callable[[bytes], None], *, key: bytes, bound: bytes, segment_bytes: int) -> None:
        self._sink = _Sink(write)
        self._stream: io.BufferedWriter = _aead(key, segment_bytes).new_encrypting_stream(self._sink, bound)

    def write(self, data: bytes | memoryview) -> None:
        with self._sink:
            self._stream.write(data)

    def finish(self) -> None:
        """Write the last segment; without it the file counts as cut off."""
        with self._sink:
            self._stream.close()

    def abandon(self) -> None:
        """Stop without writing anything more."""
        self._sink.write_on = None
        try:
            self._stream.close()
        except _tink("tink").TinkError:
            # It complains again about the reason for giving up, and would once more when it is collected.
            io.RawIOBase.close(cast("io.RawIOBase", self._stream.raw))


class DecryptingPayload:
    """Decrypts what it reads. Bytes it returns are authentic; that none are missing is known when it returns none."""

    def __init__(self, read: Callable[[int], bytes], *, key: bytes, bound: bytes, segment_bytes: int) -> None:
        self._source = _Source(read)
        self._stream: BinaryIO = _aead(key, segment_bytes).new_decrypting_stream(self._source, bound)

    def read(self) -> bytes:
        """The next bytes, empty at the end.

        Raises:
            PayloadDamagedError: the ciphertext was altered, cut, or belongs elsewhere.
        """
        with self._source:
            try:
                return self._stream.read(READ_BYTES)
            except _tink("tink").TinkError as problem:
                raise PayloadDamagedError from problem

    def close(self) -> None:
        self._stream.close()


def payload_bytes(plain_bytes: int, segment_bytes: int) -> int:
    """How long the payload of this many bytes is: its header, and a tag for each segment that holds some of it."""
    room = segment_bytes - _TAG_BYTES
    count = max(1, -(-(plain_bytes + _HEADER_BYTES) // room))
    return _HEADER_BYTES + plain_bytes + count * _TAG_BYTES


class _Carrier(io.RawIOBase):
    """Carries exceptions of our side around Tink's code, which would turn them into its own error."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: Exception | None = None

    def __enter__(self) -> "_Carrier":
        return self

    def __exit__(self, *_: object) -> None:
        if self.raised is not None:
            raised, self.raised = self.raised, None
            raise raised


class _Sink(_Carrier):
    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self.write_on: Callable[[bytes], None] | None = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.write_on is not None:
            try:
                self.write_on(data)
            except Exception as problem:
                self.raised, self.write_on = problem, None
                raise
        return len(data)


class _Source(_Carrier):
    def __init__(self, read: Callable[[int], bytes]) -> None:
        super().__init__()
        self._read = read

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._read(size)
        except Exception as problem:
            self.raised = problem
            raise


def _tink(module: str) -> Any:
    """A part of Tink, which has no types; loading it takes a tenth of a second, so it waits for the first use."""
    return import_module(module)


@cache
def _streaming_aead() -> Any:
    module = _tink("tink.streaming_aead")
    module.register()
    return module.StreamingAead


def _aead(key: bytes, segment_bytes: int) -> Any:
    """Tink's primitive over a key that we keep: a keyset of one key, created in memory and never written."""
    streaming = _tink("tink.proto.aes_gcm_hkdf_streaming_pb2")
    keysets = _tink("tink.proto.tink_pb2")
    params = streaming.AesGcmHkdfStreamingParams(
        ciphertext_segment_size=segment_bytes,
        derived_key_size=32,
        hkdf_hash_type=_tink("tink.proto.common_pb2").SHA256,
    )
    data = keysets.KeyData(
        type_url="type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey",
        value=streaming.AesGcmHkdfStreamingKey(version=0, key_value=key, params=params).SerializeToString(),
        key_material_type=keysets.KeyData.SYMMETRIC,
    )
    only = keysets.Keyset.Key(key_id=1, status=keysets.ENABLED, output_prefix_type=keysets.RAW, key_data=data)
    keyset = keysets.Keyset(primary_key_id=1, key=[only]).SerializeToString()
    handle = _tink("tink").proto_keyset_format.parse(keyset, _tink("tink.secret_key_access").TOKEN)
    return handle.primitive(_streaming_aead())
