"""A key that an operator unlocks with a passphrase, held in memory until it is locked again."""

import os
import weakref
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import NoReturn

from helix_agents.capabilities.vault.checkpoints import CheckpointSigner, public_key_of
from helix_agents.capabilities.vault.extra import require_vault_extra
from helix_agents.capabilities.vault.keeping import Charge, Kept, ask_keeper, start_keeper
from helix_agents.capabilities.vault.keys import (
    KEY_BYTES,
    SALT_BYTES,
    Argon2Cost,
    UnlockedKeys,
    check_new_passphrase,
    derive,
    stretch,
    unwrap,
    wrap,
)
from helix_agents.capabilities.vault.threads import in_thread
from helix_agents.capabilities.vault.vault_file import (
    VaultDescription,
    VaultFacts,
    VaultFile,
    find_vault_file,
    write_vault_file,
)
from helix_agents.domain.errors import (
    DefinitionError,
    VaultAlreadyExistsError,
    VaultLockedError,
    VaultNotInitialisedError,
    WrongPassphraseError,
)
from helix_agents.system import RandomIds

_ENVELOPE = "vault/master/v1"
_SIGNING = "vault/audit-signing/v1"
_LONGEST_TRUST_SECONDS = 10 * 366 * 24 * 3600.0


class Vault:
    """A vault kept in a file: a random master key under a passphrase.

    Only an operator unlocks it: for one process (`unlock`), or for all processes of a user (`entrust`, or the command
    `helix vault unlock`). A lost passphrase cannot be recovered, and neither can anything that only it opens. The keys
    in memory belong to this process: a forked child does not have them, and a vault whose passphrase was changed by
    another process locks itself when it is next used.
    """

    def __init__(self, path: str | Path, *, cost: Argon2Cost | None = None) -> None:
        """Name the vault's file; nothing is read yet.

        Raises:
            MissingExtraError: the extra `vault` is not installed.
            DefinitionError: no vault may have this cost.
        """
        require_vault_extra()
        self.path = Path(path).absolute()
        self._cost = Argon2Cost() if cost is None else cost
        if problem := self._cost.problem():
            raise DefinitionError("A vault", problem)
        self._keys: UnlockedKeys | None = None
        self._seen: bytes = b""
        # Held in threads only, while keys are created or changed: guesses at a passphrase come one after another.
        self._changing = Lock()
        _every_vault.add(self)

    @property
    def unlocked(self) -> bool:
        """Whether the keys are in memory."""
        return self._keys is not None

    async def find(self) -> VaultFacts | None:
        """What is known without a passphrase; None before `init`.

        Raises:
            VaultDamagedError: the file was altered.
        """
        found = await in_thread(lambda: find_vault_file(self.path))
        return None if found is None else found.description.facts()

    async def init(self, passphrase: str) -> VaultFacts:
        """Create the vault, and leave it unlocked. Of many concurrent callers, one succeeds.

        Raises:
            VaultAlreadyExistsError: there is one already.
            WeakPassphraseError: the passphrase protects nothing.
        """
        check_new_passphrase(passphrase)
        return await in_thread(lambda: self._init(passphrase))

    async def unlock(self, passphrase: str) -> VaultFacts:
        """Load the keys into memory.

        Raises:
            VaultNotInitialisedError: there is no vault yet.
            WrongPassphraseError: the passphrase does not open this vault.
            VaultDamagedError: the file was altered.
        """
        return await in_thread(lambda: self._unlock(passphrase))

    def lock(self) -> None:
        """Forget the keys. A backup that is being written has its own key and is finished."""
        keys, self._keys = self._keys, None
        if keys is not None:
            keys.wipe()

    async def entrust(self, passphrase: str, seconds: float) -> VaultFacts:
        """Unlock the vault for every process of this user: a separate process keeps the keys for this long.

        Raises:
            VaultNotInitialisedError: there is no vault yet.
            WrongPassphraseError: the passphrase does not open this vault.
            VaultDamagedError: the file was altered.
            VaultFileError: no process can listen beside the vault's file.
            DefinitionError: `seconds` is not a time, or is longer than ten years.
        """
        if not 0 < seconds <= _LONGEST_TRUST_SECONDS:
            raise DefinitionError(
                "A vault", f"{seconds / 3600:g} hours is not a time to unlock it for; say up to ten years."
            )
        return await in_thread(lambda: self._entrust(passphrase, seconds))

    async def withdraw(self) -> bool:
        """Lock the vault for every process that has not unlocked it for itself; returns whether it was entrusted."""
        return await in_thread(lambda: ask_keeper(self.path, "lock")) is not None

    async def entrusted_seconds(self) -> float | None:
        """How long every process of this user still has the keys; None if no keeper has them."""
        answer = await in_thread(lambda: ask_keeper(self.path, "status"))
        return None if answer is None else answer.seconds_left

    async def change_passphrase(self, old: str, new: str) -> VaultFacts:
        """Put the same master key under a new passphrase, and leave the vault unlocked.

        Earlier backups still open with this vault, and with the passphrase they were made under.

        Raises:
            VaultNotInitialisedError: there is no vault yet.
            WrongPassphraseError: the old one does not open this vault.
            WeakPassphraseError: the new one protects nothing.
        """
        check_new_passphrase(new)
        return await in_thread(lambda: self._change(old, new))

    async def require_unlocked(self) -> VaultFacts:
        """Check that the keys are available and still those of the file: worth doing before a person is asked.

        Raises:
            VaultNotInitialisedError: there is no vault yet.
            VaultLockedError: it is locked.
        """
        found, _ = await in_thread(self._at_hand)
        return found.description.facts()

    async def keys(self) -> UnlockedKeys:
        """The keys, for what the vault protects.

        Raises:
            VaultNotInitialisedError: there is no vault yet.
            VaultLockedError: it is locked.
        """
        return (await in_thread(self._at_hand))[1]

    async def signer(self) -> CheckpointSigner:
        """The signer of audit checkpoints with this vault's key.

        Raises:
            VaultNotInitialisedError: there is no vault yet.
            VaultLockedError: it is locked.
        """
        return CheckpointSigner((await self.keys()).from_master(_SIGNING))

    def _load(self) -> VaultFile:
        found = find_vault_file(self.path)
        if found is None:
            raise VaultNotInitialisedError(str(self.path))
        return found

    def _at_hand(self) -> tuple[VaultFile, UnlockedKeys]:
        found = self._load()
        keys = self._keys
        if keys is None:
            return found, self._entrusted(found)
        if found.wrapped_key != self._seen:
            self.lock()
            raise VaultLockedError(str(self.path), "its passphrase was changed by another process")
        return found, keys

    def _entrusted(self, found: VaultFile) -> UnlockedKeys:
        """The keys as their keeper has them, for this one use: once the keeper has dropped them, this process has
        none."""
        answer = ask_keeper(self.path, "keys")
        if answer is None or answer.kept is None or answer.kept.wrapped_key != found.wrapped_key:
            raise VaultLockedError(str(self.path))
        return self._unlocked_keys(found.description, answer.kept.master, answer.kept.stretched)

    def _entrust(self, passphrase: str, seconds: float) -> VaultFacts:
        with self._changing:
            found = self._load()
            stretched, master = self._stretched_and_master(found, passphrase)
            kept = Kept(wrapped_key=found.wrapped_key, master=master, stretched=stretched)
            start_keeper(self.path, Charge(kept=kept, seconds=seconds))
            return found.description.facts()

    def _init(self, passphrase: str) -> VaultFacts:
        with self._changing:
            if find_vault_file(self.path) is not None:
                raise VaultAlreadyExistsError(str(self.path))
            created_at = datetime.now(UTC).isoformat(timespec="seconds")
            return self._seal(os.urandom(KEY_BYTES), passphrase, RandomIds().new("vault"), created_at, replacing=False)

    def _change(self, old: str, new: str) -> VaultFacts:
        with self._changing:
            found, keys = self._open(old)
            master = keys.master_key()
            keys.wipe()
            description = found.description
            return self._seal(master, new, description.vault_id, description.created_at, replacing=True)

    def _seal(self, master: bytes, passphrase: str, vault_id: str, created_at: str, *, replacing: bool) -> VaultFacts:
        description = VaultDescription(
            vault_id=vault_id,
            created_at=created_at,
            public_key=public_key_of(derive(master, _SIGNING)),
            cost=self._cost,
            salt=os.urandom(SALT_BYTES),
        )
        stretched = stretch(passphrase, description.salt, description.cost)
        wrapped = wrap(derive(stretched, _ENVELOPE), master, description.bound())
        write_vault_file(self.path, description, wrapped, replacing=replacing)
        self._hold(description, wrapped, master, stretched)
        return description.facts()

    def _unlock(self, passphrase: str) -> VaultFacts:
        with self._changing:
            found, keys = self._open(passphrase)
            self._take(keys, found.wrapped_key)
            return found.description.facts()

    def _open(self, passphrase: str) -> tuple[VaultFile, UnlockedKeys]:
        found = self._load()
        stretched, master = self._stretched_and_master(found, passphrase)
        return found, self._unlocked_keys(found.description, master, stretched)

    def _stretched_and_master(self, found: VaultFile, passphrase: str) -> tuple[bytes, bytes]:
        description = found.description
        stretched = stretch(passphrase, description.salt, description.cost)
        master = unwrap(derive(stretched, _ENVELOPE), found.wrapped_key, found.bound)
        if master is None:
            raise WrongPassphraseError(str(self.path))
        return stretched, master

    def _hold(self, description: VaultDescription, wrapped_key: bytes, master: bytes, stretched: bytes) -> None:
        self._take(self._unlocked_keys(description, master, stretched), wrapped_key)

    def _take(self, keys: UnlockedKeys, wrapped_key: bytes) -> None:
        self.lock()
        self._seen = wrapped_key
        self._keys = keys

    def _unlocked_keys(self, description: VaultDescription, master: bytes, stretched: bytes) -> UnlockedKeys:
        return UnlockedKeys(
            str(self.path),
            vault_id=description.vault_id,
            master=master,
            stretched=stretched,
            salt=description.salt,
            cost=description.cost,
        )

    def __repr__(self) -> str:
        return f"Vault({str(self.path)!r}, {'unlocked' if self.unlocked else 'locked'})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A vault is not pickled; open it by its path.")


_every_vault: "weakref.WeakSet[Vault]" = weakref.WeakSet()


def _lock_all() -> None:
    for vault in list(_every_vault):
        vault._changing = Lock()  # pyright: ignore[reportPrivateUsage]
        vault.lock()


os.register_at_fork(after_in_child=_lock_all)
