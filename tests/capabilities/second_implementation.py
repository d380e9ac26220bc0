"""The backup format once more, from its description alone: what an operator could write if this library were gone."""

import base64
import hashlib
import hmac
import json
import struct
from itertools import pairwise

from argon2.low_level import Type, hash_secret_raw
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def decrypt(content: bytes, passphrase: str) -> bytes:
    assert content[:10] == b"\x89HLXB\r\n\x1a" + b"\0\1"
    core_end = 14 + struct.unpack_from(">I", content, 10)[0]
    core = json.loads(content[14:core_end])
    slots_end = core_end + 4 + struct.unpack_from(">I", content, core_end)[0]
    (slot,) = [slot for slot in json.loads(content[core_end + 4 : slots_end]) if slot["kind"] == "passphrase"]
    assert hashlib.sha256(content[:slots_end]).digest() == content[slots_end : slots_end + 32]
    bound = content[:core_end]

    stretched = hash_secret_raw(
        passphrase.encode(),
        base64.b64decode(slot["vault_salt"]),
        time_cost=slot["cost"]["passes"],
        memory_cost=slot["cost"]["memory_kib"],
        parallelism=slot["cost"]["lanes"],
        hash_len=32,
        type=Type.ID,
    )
    wrapping_key = _hkdf(stretched, base64.b64decode(slot["salt"]), b"helix-agents/backup/passphrase-slot/v1")
    wrapped = base64.b64decode(slot["wrapped_key"])
    file_key = AESGCM(wrapping_key).decrypt(wrapped[:12], wrapped[12:], hashlib.sha256(bound).digest())
    mac_key = _hkdf(file_key, b"", b"helix-agents/backup/header-mac/v1")
    assert hmac.digest(mac_key, content[: slots_end + 32], "sha256") == content[slots_end + 32 : slots_end + 64]
    return _tink(content[slots_end + 64 :], file_key, bound, core["segment_bytes"])


def _tink(payload: bytes, file_key: bytes, bound: bytes, segment_bytes: int) -> bytes:
    """AES-GCM-HKDF streaming: its header is a size, a salt and a nonce prefix; the nonces number the segments."""
    assert payload[0] == 40
    salt, prefix = payload[1:33], payload[33:40]
    cipher = AESGCM(_hkdf(file_key, salt, bound))
    edges = [40, *range(segment_bytes, len(payload), segment_bytes), len(payload)]
    plain = b""
    for number, (begin, end) in enumerate(pairwise(edges)):
        nonce = prefix + struct.pack(">IB", number, end == len(payload))
        plain += cipher.decrypt(nonce, payload[begin:end], None)
    return plain


def _hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(key)
