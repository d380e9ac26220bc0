"""A change to one slot: decided here on what is known of it, made in one script if that is still true."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from helix_agents.backends.redis.errors import LookAgainError
from helix_agents.backends.redis.index import Entry
from helix_agents.backends.redis.keys import Slot
from helix_agents.domain.errors import SessionCorruptError, UnstorableValueError
from helix_agents.ports.clock import IdSource
from helix_agents.ports.state_store import StoreLimits

Command = tuple[Any, ...]
"""A Redis command: its name, its key (None if it has none) and its arguments."""

Question = tuple[str | None, tuple[Command, ...]]
"""Commands that are read together, and the entity whose revision is wanted with them, if any."""

AT_ONCE = 1_000
"""A script that unpacks several thousand arguments fails, and what it did until then stays done."""

READ_AT_ONCE = 500
"""How many sessions are read with one answer, because each answer checks everything that was read before."""

V = TypeVar("V")


class Known(Generic[V]):
    """What is known of an entity: the revision it was read at ('' if it does not exist), and its value.

    Values change in place. That is safe because a value is taken out of the cache before it is changed, and goes back
    only when the change is committed.
    """

    __slots__ = ("key", "revision", "value")

    def __init__(self, key: str, revision: bytes, value: V) -> None:
        self.key = key
        self.revision = revision
        self.value = value


class Runner(Protocol):
    """Sends a transaction's commands."""

    def take(self, key: str) -> "Known[Any] | None":
        """Remove an entity from the cache and return what was known of it."""
        ...

    def peek(self, key: str) -> "Known[Any] | None":
        """What the cache knows of an entity, for reading only."""
        ...

    async def run(
        self,
        what: str,
        expectations: Sequence[tuple[str, str, bytes | int]],
        commands: Sequence[Command],
        latest_ms: int,
    ) -> "Ran":
        """Send one script."""
        ...


class Ran:
    """A script's answer; `differs` names the key that was not as expected, if there was one."""

    __slots__ = ("at_us", "damaged", "differs", "replies", "revisions")

    def __init__(
        self, at_us: bytes, revisions: list[bytes], replies: list[Any], differs: str | None, damaged: bool
    ) -> None:
        self.at_us = at_us
        self.revisions = revisions
        self.replies = replies
        self.differs = differs
        self.damaged = damaged


class Transaction:
    """Reads entities of one slot and collects changes to them. Nothing is written before everything is decided.

    Every read checks that everything read before is still current, so a decision is always based on one consistent
    view. `fresh` says that nothing may be taken from the cache, because a refusal has to be based on the server's
    answer. `certain` says that the slot was looked up, and is not merely where the session was last seen. `settled`
    says that the slot is not a mere guess: a session was seen there.
    """

    def __init__(
        self,
        runner: Runner,
        tag: str,
        slot: Slot,
        *,
        what: str,
        now: int,
        ids: IdSource,
        limits: StoreLimits,
        fresh: bool,
        certain: bool,
        settled: bool,
    ) -> None:
        self._runner = runner
        self.tag = tag
        self.slot = slot
        self.what = what
        self.now = now
        self.ids = ids
        self.limits = limits
        self.fresh = fresh
        self.certain = certain
        self.settled = certain or settled
        self.used_cache = False
        self.at_us = b"0"
        self.known: dict[str, Known[Any]] = {}
        self.changed: set[str] = set()
        self.touched: set[str] = set()
        self.lengths: dict[str, int] = {}
        self.commands: list[Command] = []
        self.entries: dict[str, tuple[str, Entry, tuple[str, ...]]] = {}
        self.before_commit: list[Callable[[], None]] = []
        self._soon: list[Question] = []
        self._answers: dict[Question, tuple[list[Any], bytes]] = {}

    # -- reading ----------------------------------------------------------------------------------------

    async def load(self, key: str, reads: Sequence[Command], decode: Callable[[list[Any]], V]) -> Known[V]:
        """An entity, from the cache if that is allowed; `decode` turns the replies into its value."""
        known = self.known.get(key)
        if known is not None:
            return known
        if not self.fresh:
            known = self._runner.take(key)
            if known is not None:
                self.used_cache = True
                self.known[key] = known
                return known
        replies, revision = await self._read(reads, watch=key)
        known = Known(key, revision, decode(replies))
        self.known[key] = known
        return known

    async def read(self, *reads: Command) -> list[Any]:
        """Read more of the entities that are known already, all as of the same moment."""
        return (await self._read(reads))[0]

    def bring(self, *reads: Command, of: str | None = None) -> None:
        """Announce what will probably be read next, or `of` which entity, so that the next answer includes it."""
        if of is None or self.fresh or self._runner.peek(of) is None:
            self._soon.append((of, reads))

    def last_seen(self, key: str) -> Any:
        """The entity's value after its last change here; good for a guess and nothing else."""
        known = self._runner.peek(key)
        return None if known is None else known.value

    async def _read(self, reads: Iterable[Command], watch: str | None = None) -> tuple[list[Any], bytes]:
        asked: Question = (watch, tuple(reads))
        if asked in self._answers:
            return self._answers[asked]
        questions = [asked, *self._soon]
        self._soon = []
        expectations: list[tuple[str, str, bytes | int]] = [
            (known.key, "=", known.revision) for known in self.known.values()
        ]
        expectations.extend((key, "?", b"") for key, _ in questions if key is not None)
        commands = tuple(command for _, commands in questions for command in commands)
        ran = await self._runner.run(f"read {self.what}", expectations, commands, 0)
        self.at_us = ran.at_us
        if ran.differs is not None:
            raise LookAgainError(ran.differs)
        replies, revisions = iter(ran.replies), iter(ran.revisions[len(self.known) :])
        # Earlier answers are from another moment.
        self._answers = {
            (key, commands): ([next(replies) for _ in commands], next(revisions) if key is not None else b"")
            for key, commands in questions
        }
        return self._answers[asked]

    # -- writing ----------------------------------------------------------------------------------------

    def do(self, name: str, key: str | None, *args: Any) -> None:
        """Add a command to the transaction."""
        self.commands.append((name, key, *args))

    def do_with_all(self, name: str, key: str, items: Sequence[Any]) -> None:
        """Add a command with more arguments than a script can pass at once."""
        for first in range(0, len(items), AT_ONCE):
            self.do(name, key, *items[first : first + AT_ONCE])

    def change(self, known: Known[Any]) -> None:
        """Declare that this transaction changes an entity, or what it guards."""
        self.changed.add(known.key)

    def touch(self, key: str) -> None:
        """The same for an entity that was not read, or whose value is useless afterwards."""
        self.touched.add(key)

    def push(self, key: str, items: Sequence[str | bytes], *, after: int) -> None:
        """Append to a list that must have `after` items now."""
        self.lengths.setdefault(key, after)
        self.do_with_all("RPUSH", key, items)

    def index(self, key: str, entry: Entry, origin: tuple[str, ...]) -> None:
        """Have an index entry follow the entity under this key; `origin` names what it is built from.

        Raises:
            UnstorableValueError: the entry's score is out of range. If that were found only after the commit, the index
                could never be updated again.
        """
        for _, score in entry.orders:
            try:
                float(score)
            except OverflowError as problem:
                raise UnstorableValueError("number", str(problem)) from problem
        self.entries[entry.id] = (key, entry, origin)

    @property
    def writes(self) -> bool:
        return bool(self.commands or self.changed or self.touched)

    def expectations(self) -> list[tuple[str, str, bytes | int]]:
        """What has to hold for the transaction to be made."""
        wanted: list[tuple[str, str, bytes | int]] = [
            (known.key, "+" if known.key in self.changed or known.key in self.touched else "=", known.revision)
            for known in self.known.values()
        ]
        wanted.extend((key, "*", b"") for key in self.touched if key not in self.known)
        wanted.extend((key, "#", length) for key, length in self.lengths.items())
        return wanted

    def damaged(self, key: str) -> SessionCorruptError:
        """The error for a list that is not as long as it was left."""
        return SessionCorruptError("session", f"part of it is missing from Redis ({key})")
