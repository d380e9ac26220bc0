"""How state writes are checked and logged at a cost that does not grow with the state."""

from collections.abc import Iterable
from functools import partial

from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.lineage import load_custom_state, log_writes, materialise, outweighs
from helix_agents.backends.postgres.rows import SessionHead
from helix_agents.domain.errors import InvalidWriteError
from helix_agents.domain.limits import check_size
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.writes import Add, Append, Delete, Include, Replace, StepWrites, Update, WriteOp

_REMEMBERED = 4096


class StateWrites:
    """Logs writes for one store.

    An append has to meet a list. Which keys hold something else is remembered per history, together with the version it
    is true for, so that a step's commit need not read the state. A change to the session by another writer causes one
    more read. Only committed facts are remembered.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._not_lists: dict[str, tuple[int, int, frozenset[str]]] = {}

    async def log(
        self, connection: Connection, row: SessionHead, ops: tuple[WriteOp, ...], *, version_before: int
    ) -> None:
        """Log the writes of one commit; `row.version` is the version they lead to.

        Raises:
            InvalidWriteError: an append meets a value that is not a list.
            StateSizeExceededError: the state would be larger than the store accepts.
        """
        await self.check(connection, row, ops, version_before=version_before)
        await log_writes(connection, row, encode(StepWrites(ops=ops)).decode())
        # The writes' JSON is never smaller than what they add, so this sum is an upper bound for the state.
        may_exceed = self.may_exceed(row.state_base_bytes + row.state_since_bytes)
        if may_exceed or outweighs(row.state_base_bytes, row.state_since_bytes):
            state = await load_custom_state(connection, row.segment, row.state_count)
            self.check_size(row.session_id, state, ops)
            await materialise(connection, row, state)

    async def check(
        self, connection: Connection, row: SessionHead, ops: tuple[WriteOp, ...], *, version_before: int
    ) -> None:
        """Accept appends that meet lists; reads the state if that is not known.

        Raises:
            InvalidWriteError: an append meets a value that is not a list.
        """
        known = self.known(row.session_id, version_before, row.segment)
        if known is None:
            if Append not in map(type, ops):
                return
            state = await load_custom_state(connection, row.segment, row.state_count)
            known = frozenset(key for key, value in state.items() if type(value) is not list)
        after = not_lists_after(row.session_id, known, ops)
        connection.after_commit.append(partial(self.remember, row.session_id, row.version, row.segment, after))

    def known(self, session_id: str, version: int, segment: int) -> frozenset[str] | None:
        """The keys that hold something other than a list at this version, if that is known."""
        found = self._not_lists.get(session_id)
        return found[2] if found is not None and found[:2] == (version, segment) else None

    def found(self, session_id: str) -> tuple[int, int, frozenset[str]] | None:
        """The version and history that something is known for, and the keys that hold something other than a list."""
        return self._not_lists.get(session_id)

    def may_exceed(self, upper_bound: int) -> bool:
        """Whether a state of at most this size may be too large."""
        return self.limit is not None and upper_bound > self.limit

    def remember(self, session_id: str, version: int, segment: int, not_lists: frozenset[str]) -> None:
        """Remember these keys for a committed version."""
        if len(self._not_lists) >= _REMEMBERED:
            self._not_lists.clear()
        self._not_lists[session_id] = (version, segment, not_lists)

    def keep(self, row: SessionHead, version_before: int, connection: Connection) -> None:
        """Carry what is remembered over to the version of a commit that did not touch the state."""
        known = self.known(row.session_id, version_before, row.segment)
        if known is not None:
            connection.after_commit.append(partial(self.remember, row.session_id, row.version, row.segment, known))

    def check_first(self, session_id: str, state: dict[str, JSON]) -> None:
        """Refuse an initial state that is too large."""
        self.check_size(session_id, state, ())

    def check_size(self, session_id: str, state: dict[str, JSON], ops: tuple[WriteOp, ...]) -> None:
        """Refuse a state that is larger than the store accepts; `ops` led to it."""
        if self.limit is not None:
            keys = tuple(dict.fromkeys(op.key for op in ops))
            check_size(session_id, "state", len(encode(state)), self.limit, keys)


def not_lists_after(session_id: str, not_lists: frozenset[str], ops: Iterable[WriteOp]) -> frozenset[str]:
    """The keys that hold something other than a list after these writes.

    Raises:
        InvalidWriteError: an append meets a value that is not a list.
    """
    after = set(not_lists)
    for op in ops:
        match op:
            case Append(key=key) if key in after:
                raise InvalidWriteError(session_id, key, "append needs a list, but the key holds another value")
            case Append() | Delete() | Include():
                after.discard(op.key)
            case Replace(key=key, value=value):
                (after.discard if type(value) is list else after.add)(key)
            case Add() | Update():
                after.add(op.key)
    return frozenset(after)
