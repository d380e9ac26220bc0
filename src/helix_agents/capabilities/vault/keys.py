"""How keys are created, wrapped and forgotten: Argon2id for passphrases, HKDF for purposes, AES-256-GCM around keys.

Python cannot guarantee that no copy of a key is left in memory. What is possible is done: keys live in a buffer that is
overwritten, are never part of a `repr`, and cannot be pickled.
"""

import os
import unicodedata
from threading import Lock
from typing import NoReturn

from helix_agents.domain.errors import VaultLockedError, WeakPassphraseError
from helix_agents.domain.records import Record

KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
FEWEST_CHARACTERS = 8

# The most that a file may demand of the machine that opens it: enough for any sane choice, too little to bring it down.
MOST_MEMORY_KIB = 1024 * 1024
MOST_PASSES = 10
MOST_LANES = 16


class Argon2Cost(Record, omit_defaults=False):
    """The cost of one guess at a passphrase. The defaults are RFC 9106's second choice: 64 MiB, 3 passes, 4 lanes."""

    memory_kib: int = 64 * 1024
    passes: int = 3
    lanes: int = 4

    def problem(self) -> str | None:
        """Why this cost is not possible here, or None."""
        if not 1 <= self.lanes <= MOST_LANES:
            return f"Argon2id with {self.lanes} lanes; from 1 to {MOST_LANES} are accepted"
        if not 1 <= self.passes <= MOST_PASSES:
            return f"Argon2id with {self.passes} passes; from 1 to {MOST_PASSES} are accepted"
        if not 8 * self.lanes <= self.memory_kib <= MOST_MEMORY_KIB:
            return f"Argon2id with {self.memory_kib} KiB; from {8 * self.lanes} to {MOST_MEMORY_KIB} are accepted"
        return None


class Secret:
    """A key in a buffer that can be overwritten; it is never shown."""

    __slots__ = ("_bytes",)

    def __init__(self, key: bytes) -> None:
        self._bytes = bytearray(key)

    def reveal(self) -> bytes:
        return bytes(self._bytes)

    def wipe(self) -> None:
        self._bytes[:] = bytes(len(self._bytes))

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A secret is not pickled.")


class UnlockedKeys:
    """The keys of an unlocked vault, until they are wiped.

    The stretched passphrase, what Argon2id made of it, is kept as well, so that a backup can later be opened with the
    passphrase although it is not typed when the backup is made.
    """

    __slots__ = ("_guard", "_master", "_path", "_stretched", "_wiped", "cost", "salt", "vault_id")

    def __init__(
        self, path: str, *, vault_id: str, master: bytes, stretched: bytes, salt: bytes, cost: Argon2Cost
    ) -> None:
        self.vault_id = vault_id
        self.salt = salt
        self.cost = cost
        self._path = path
        self._master = Secret(master)
        self._stretched = Secret(stretched)
        self._wiped = False
        self._guard = Lock()

    def from_master(self, purpose: str, salt: bytes = b"") -> bytes:
        """A key for one purpose, derived from the vault's master key.

        Raises:
            VaultLockedError: the keys were wiped meanwhile.
        """
        return self._derive(self._master, purpose, salt)

    def from_passphrase(self, purpose: str, salt: bytes = b"") -> bytes:
        """A key for one purpose, derived from the stretched passphrase.

        Raises:
            VaultLockedError: the keys were wiped meanwhile.
        """
        return self._derive(self._stretched, purpose, salt)

    def master_key(self) -> bytes:
        """The master key itself, to be wrapped again."""
        with self._guard:
            self._check()
            return self._master.reveal()

    def wipe(self) -> None:
        with self._guard:
            self._wiped = True
            self._master.wipe()
            self._stretched.wipe()

    def _derive(self, secret: Secret, purpose: str, salt: bytes) -> bytes:
        # Locking the vault waits for this: a key derived from overwritten bytes would protect nothing.
        with self._guard:
            self._check()
            return derive(secret.reveal(), purpose, salt)

    def _check(self) -> None:
        if self._wiped:
            raise VaultLockedError(self._path, "it was locked meanwhile")

    def __repr__(self) -> str:
        return f"UnlockedKeys(vault_id={self.vault_id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Keys are not pickled.")


def check_new_passphrase(passphrase: str) -> None:
    """Check that a passphrase is worth stretching.

    Raises:
        WeakPassphraseError: it is shorter than eight characters, or one character repeated.
    """
    if len(passphrase.strip()) < FEWEST_CHARACTERS:
        raise WeakPassphraseError(f"it has fewer than {FEWEST_CHARACTERS} characters")
    if len(set(passphrase)) == 1:
        raise WeakPassphraseError("it is one character repeated")


def stretch(passphrase: str, salt: bytes, cost: Argon2Cost) -> bytes:
    """Argon2id: slow on purpose, so call it in a thread.

    Accents can be typed in two ways that look the same; both give the same key.
    """
    from argon2.low_level import Type, hash_secret_raw

    return hash_secret_raw(
        secret=unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass"),
        salt=salt,
        time_cost=cost.passes,
        memory_cost=cost.memory_kib,
        parallelism=cost.lanes,
        hash_len=KEY_BYTES,
        type=Type.ID,
    )


def derive(key: bytes, purpose: str, salt: bytes = b"") -> bytes:
    """HKDF-SHA-256: a key for one purpose, which reveals neither the first key nor keys for other purposes."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"helix-agents/" + purpose.encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(key)


def wrap(wrapping_key: bytes, key: bytes, context: bytes) -> bytes:
    """The key under another key, bound to its context: nonce, ciphertext and tag of AES-256-GCM."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(wrapping_key).encrypt(nonce, key, context)


def unwrap(wrapping_key: bytes, wrapped: bytes, context: bytes) -> bytes | None:
    """The unwrapped key, or None if the wrapping key, the context or the bytes are not the original ones."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(wrapped) != NONCE_BYTES + KEY_BYTES + 16:
        return None
    try:
        return AESGCM(wrapping_key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
    except InvalidTag:
        return None
