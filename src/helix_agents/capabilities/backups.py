"""Backups as files: which entries they hold, how they are written and read back, and which are kept."""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from helix_agents import __version__
from helix_agents.capabilities.approval_rows import OPEN, row_of
from helix_agents.capabilities.files import folder_of, hash_of, remove_file
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.retention import kept
from helix_agents.capabilities.scopes import APPROVALS, BACKUPS, NAMES, SHARED, agent_of, agent_scope
from helix_agents.capabilities.settings import StateSettings
from helix_agents.capabilities.values import shown_time, stamp
from helix_agents.capabilities.vault import BackupAbout, BackupFacts, BackupReader, Vault, create_backup, open_backup
from helix_agents.domain.capability_errors import BackupNotFound, DecryptionFailed, VaultLocked, VersionConflict
from helix_agents.domain.entries import Entry, EntryTransaction, Put, Remove
from helix_agents.domain.errors import PathRefusedError
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.ports.entries import EntryDump, EntryStore

SUFFIX = ".helixbackup"
FULL = "full"
BEFORE_RESTORE = "before a restore"
DAY_MS = 24 * 60 * 60 * 1000
KEPT_BEFORE_RESTORE_MS = 7 * DAY_MS
MOST_TRIES = 100
STAGED_AT_ONCE = 500
DAMAGED = "Wrong key, or the backup file is damaged."


class Manifest(Record):
    """The first line of a backup: what it contains."""

    scopes: tuple[str, ...]
    revision: int


class Trailer(Record):
    """The last line of a backup: what it must have contained."""

    rows: int
    sha256: str


class BackupRow(Record):
    """What is known about a backup without opening it."""

    scope: str
    created_at: str
    file_size_bytes: int
    revision: int
    sha256: str
    reason: str = "asked for"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A backup and its file."""

    backup_id: str
    row: BackupRow
    made_at: int
    path: Path


class Backups:
    """The backups of one store."""

    def __init__(self, store: EntryStore, settings: StateSettings) -> None:
        self._store = store
        self._settings = settings

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return folder_of(self._store, self._settings, "backups")

    @property
    def vault(self) -> Vault:
        """The vault, if there is one.

        Raises:
            VaultLocked: no vault was set up.
        """
        if self._settings.vault is None:
            raise VaultLocked("No vault is set up; backups need one.", {"reason": "no_vault"})
        return self._settings.vault

    async def scopes_for(self, agent: str | None) -> list[str]:
        """The scopes in a backup of one agent, or of everything."""
        if agent is not None:
            return [agent_scope(agent)]
        return [*(usage.scope for usage in await self._store.list_scopes("agent:")), SHARED]

    async def create(self, agent: str | None, *, reason: str = "asked for") -> Known:
        """Write and verify a backup of one revision; it is not registered yet."""
        folder = self.folder
        await asyncio.to_thread(lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        async with self._dump(agent) as (scopes, dump):
            now = self._store.now_ms()
            name = scope_name(agent)
            async for backup_id in self.free_names(now):
                about = BackupAbout(
                    backup_id=backup_id,
                    created_at=shown_time(now),
                    scope=name,
                    store_id=await self._store.store_id(),
                    revision=dump.revision,
                    app_version=__version__,
                )
                path = folder / f"{backup_id}{SUFFIX}"
                try:
                    facts = await self._write(
                        path, about, Manifest(scopes=tuple(scopes), revision=dump.revision), dump.rows()
                    )
                except PathRefusedError:
                    # The name belongs to a file without a record.
                    if not await asyncio.to_thread(path.exists):
                        raise
                    continue
                row = BackupRow(
                    scope=name,
                    created_at=about.created_at,
                    file_size_bytes=facts.file_bytes,
                    revision=dump.revision,
                    sha256=facts.sha256,
                    reason=reason,
                )
                return Known(backup_id=backup_id, row=row, made_at=now, path=path)
        raise FileExistsError(f"bkp-{stamp(now)}")

    async def free_names(self, now: int) -> AsyncIterator[str]:
        """Names for a backup of this second, each reserved in the store: another backup at the same time, on any
        machine, gets another name, and no name is ever given again."""
        for attempt in range(1, MOST_TRIES):
            name = f"bkp-{stamp(now)}" + (f"-{attempt}" if attempt > 1 else "")
            taken = Put(scope=NAMES, key=name, value="1", expected_version=0)
            try:
                await self._store.transact(EntryTransaction(changes=(taken,), owner="backups"))
            except VersionConflict:
                continue
            yield name

    @asynccontextmanager
    async def _dump(self, agent: str | None) -> AsyncGenerator[tuple[list[str], EntryDump]]:
        """The scopes of a backup and a dump of them at one revision; an agent that is new there is not left out."""
        scopes = await self.scopes_for(agent)
        while True:
            async with self._store.dump(scopes) as dump:
                there = await self.scopes_for(agent)
                if set(there) <= set(scopes):
                    yield scopes, dump
                    return
            scopes = there

    async def find(self, backup_id: str) -> Known:
        """A backup by its id, which is never used as part of a path.

        Raises:
            BackupNotFound: there is none, or its file is gone.
        """
        found = await self._store.find(BACKUPS, backup_id)
        if found is None:
            raise BackupNotFound(f"There is no backup {backup_id[:80]!r}.", {"backup_id": backup_id[:80]})
        known = self._known(found)
        if not await asyncio.to_thread(known.path.is_file):
            raise BackupNotFound(f"The file of backup {backup_id!r} is gone.", {"backup_id": backup_id})
        return known

    async def list_known(self) -> list[Known]:
        """Every backup, newest first."""
        known = [self._known(entry) async for entry in every_entry(self._store, BACKUPS)]
        return sorted(known, key=lambda each: (each.made_at, each.backup_id), reverse=True)

    async def hash_of(self, known: Known) -> str:
        """The hash of a backup's file in its present state."""
        return await asyncio.to_thread(hash_of, known.path)

    async def rows(
        self, path: Path, *, passphrase: str | None = None, sha256: str | None = None
    ) -> AsyncIterator[Manifest | Sequence[Entry]]:
        """The manifest, then every row, in batches; the end is reached only if everything was there.

        With `sha256`, exactly the bytes that are read must have this hash: a file that was exchanged since it was
        checked is refused before anything in it counts.

        Raises:
            DecryptionFailed: it is not the file that was written.
        """
        vault = None if passphrase is not None else self.vault
        async with open_backup(path, vault=vault, passphrase=passphrase) as reader:
            async for part in _parts(reader):
                yield part
            if sha256 not in (None, reader.sha256):
                raise DecryptionFailed(DAMAGED, {})

    async def retire(self, agent: str, made: Known) -> list[str]:
        """Remove backups that are too old: never the one that was just made, whatever the clock says, a fresh one from
        before a restore, or one that a waiting approval is about."""
        now = self._store.now_ms()
        gone: list[str] = []
        for known in await self._too_old():
            fresh = known.row.reason == BEFORE_RESTORE and now - known.made_at < KEPT_BEFORE_RESTORE_MS
            if fresh or known.backup_id == made.backup_id:
                continue
            remove = Remove(scope=BACKUPS, key=known.backup_id, forget=True)
            line: dict[str, JSON] = {
                "at": shown_time(now),
                "agent": agent,
                "status": "retired",
                "backup_id": known.backup_id,
            }
            await self._store.transact(EntryTransaction(changes=(remove,), owner=agent, audit=(line,)))
            await asyncio.to_thread(remove_file, known.path)
            gone.append(known.backup_id)
        return gone

    async def _too_old(self) -> list[Known]:
        """Backups of one agent do not count against those of another, or of everything; requested backups do not count
        against those from before a restore, or from elsewhere: trying one after another keeps them all."""
        by_kind: dict[tuple[str, str], list[Known]] = defaultdict(list)
        for known in await self.list_known():
            by_kind[known.row.scope, known.row.reason].append(known)
        found: list[Known] = []
        for same in by_kind.values():
            stay = kept((known.made_at for known in same), self._settings.limits)
            found.extend(known for known in same if known.made_at not in stay)
        if not found:
            return []
        asked = await self._asked_about()
        return [known for known in found if known.backup_id not in asked]

    async def _asked_about(self) -> set[str]:
        """Backups that a call waiting for a person's decision is about, in a run or through another interface."""
        seen = await self._store.glance((APPROVALS,))
        inputs: list[JSON] = [call.input for call in seen.pending if call.tool_name.startswith("state__backup__")]
        rows = map(row_of, seen.system[APPROVALS])
        inputs.extend(row.inputs for row in rows if row.status in OPEN)
        return {given["backup_id"] for given in inputs if isinstance(given, dict) and "backup_id" in given}

    def registration(self, known: Known) -> Put:
        """The change that registers a backup."""
        return Put(scope=BACKUPS, key=known.backup_id, value=encode(known.row).decode(), expected_version=0)

    def _known(self, entry: Entry) -> Known:
        row = decode(entry.value or "", BackupRow)
        path = self.folder / f"{entry.key}{SUFFIX}"
        return Known(backup_id=entry.key, row=row, made_at=entry.created_at, path=path)

    async def _write(
        self, path: Path, about: BackupAbout, manifest: Manifest, rows: AsyncIterator[Sequence[Entry]]
    ) -> BackupFacts:
        digest, count = hashlib.sha256(), 0
        async with create_backup(path, vault=self.vault, about=about) as backup:
            await backup.write(encode(manifest) + b"\n")
            async for batch in rows:
                lines = b"".join(encode(row) + b"\n" for row in batch)
                digest.update(lines)
                count += len(batch)
                await backup.write(lines)
            await backup.write(encode(Trailer(rows=count, sha256=digest.hexdigest())) + b"\n")
        return backup.facts


async def _parts(reader: BackupReader) -> AsyncIterator[Manifest | Sequence[Entry]]:
    """Lines from chunks: the first is the manifest, the last the trailer, all others are rows."""
    digest, count = hashlib.sha256(), 0
    manifest: Manifest | None = None
    held: bytes | None = None
    rest = b""
    rows: list[Entry] = []
    async for chunk in reader:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if manifest is None:
                manifest = decode(line, Manifest)
                yield manifest
                continue
            if held is not None:
                digest.update(held + b"\n")
                rows.append(decode(held, Entry))
                count += 1
            held = line
        if len(rows) >= STAGED_AT_ONCE:
            yield rows
            rows = []
    if rows:
        yield rows
    if held is None or rest:
        raise DecryptionFailed(DAMAGED, {})
    trailer = decode(held, Trailer)
    if (trailer.rows, trailer.sha256) != (count, digest.hexdigest()):
        raise DecryptionFailed(DAMAGED, {})


def scope_name(agent: str | None) -> str:
    """The name of a backup's scope."""
    return FULL if agent is None else f"agent:{agent}"


def agents_in(scopes: Sequence[str]) -> list[str]:
    """The agents whose state these scopes hold."""
    return [agent for scope in scopes if (agent := agent_of(scope)) is not None]
