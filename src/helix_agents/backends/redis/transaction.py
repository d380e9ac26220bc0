"""A change to one slot: decided here on what is known of it, made in one script if that still holds."""

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
"""What is read at once, and of which entity, if its revision is wanted too."""

AT_ONCE = 1_000
"""A script that unpacks some thousands of arguments fails, with what it did before done."""

READ_AT_ONCE = 500
"""So many sessions are read with one answer: each answer checks all that was read before it."""

V = TypeVar("V")


class Known(Generic[V]):
    """What is known of an entity: the revision it was read at ('' if it is not there), and its value.

    Values change in place. That is safe as whoever changes one has taken it out of the cache, and it goes back only
    when the change stands.
    """

    __slots__ = ("key", "revision", "value")

    def __init__(self, key: str, revision: bytes, value: V) -> None:
        self.key = key
        self.revision = revision
        self.value = value


class Runner(Protocol):
    """Sends what a transaction wants done."""

    def take(self, key: str) -> "Known[Any] | None":
        """What the cache knows of an entity, which it does not know any more then."""
        ...

    def peek(self, key: str) -> "Known[Any] | None":
        """What the cache knows of an entity, to look at."""
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
    """What a script answered; `differs` names the key that was not as expected, if one was not."""

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
    """Reads entities of one slot and collects changes to them. Nothing is written before all of it is decided.

    Every read checks that what was read before still stands, so a decision is always made on one moment. `fresh` says
    that nothing may be taken from the cache: a refusal has to be decided on what the server says. `certain` says that
    the slot is not only where a session was last seen, `settled` that it is no mere guess: somebody was seen there.
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
        """An entity, from the cache if that is allowed; `decode` makes its value of the replies."""
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
        """Read more of the entities that are known already; all of it belongs to one moment."""
        return (await self._read(reads))[0]

    def bring(self, *reads: Command, of: str | None = None) -> None:
        """Say what will probably be read next, or `of` which entity: the next answer brings it along."""
        if of is None or self.fresh or self._runner.peek(of) is None:
            self._soon.append((of, reads))

    def last_seen(self, key: str) -> Any:
        """What an entity was like when it was last changed here; good for a guess and nothing else."""
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
        # Earlier answers are of another moment.
        self._answers = {
            (key, commands): ([next(replies) for _ in commands], next(revisions) if key is not None else b"")
            for key, commands in questions
        }
        return self._answers[asked]

    # -- writing ----------------------------------------------------------------------------------------

    def do(self, name: str, key: str | None, *args: Any) -> None:
        """Have a command done with the rest."""
        self.commands.append((name, key, *args))

    def do_with_all(self, name: str, key: str, items: Sequence[Any]) -> None:
        """Have a command done with so many arguments that a script could not hand them over at once."""
        for first in range(0, len(items), AT_ONCE):
            self.do(name, key, *items[first : first + AT_ONCE])

    def change(self, known: Known[Any]) -> None:
        """Say that an entity, or what it stands for, is changed by this."""
        self.changed.add(known.key)

    def touch(self, key: str) -> None:
        """The same for an entity that was not read, or whose value is of no use after this."""
        self.touched.add(key)

    def push(self, key: str, items: Sequence[str | bytes], *, after: int) -> None:
        """Add to a list that must have so many items now."""
        self.lengths.setdefault(key, after)
        self.do_with_all("RPUSH", key, items)

    def index(self, key: str, entry: Entry, origin: tuple[str, ...]) -> None:
        """Have an index entry follow the entity under this key; `origin` names what it is made from.

        Raises:
            UnstorableValueError: it would stand where no order has a place. Found out after the commit, nobody could
                bring the index up to date any more.
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
        """What has to hold for this to be done."""
        wanted: list[tuple[str, str, bytes | int]] = [
            (known.key, "+" if known.key in self.changed or known.key in self.touched else "=", known.revision)
            for known in self.known.values()
        ]
        wanted.extend((key, "*", b"") for key in self.touched if key not in self.known)
        wanted.extend((key, "#", length) for key, length in self.lengths.items())
        return wanted

    def damaged(self, key: str) -> SessionCorruptError:
        """What a list says that is not as long as it was left."""
        return SessionCorruptError("session", f"part of it is missing from Redis ({key})")
