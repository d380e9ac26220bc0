"""How state writes are checked and logged at a cost that does not grow with the state."""

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.lineage import load_custom_state, log_writes, materialise, outweighs
from helix_agents.backends.sqlite.rows import SessionHead
from helix_agents.domain.errors import InvalidWriteError
from helix_agents.domain.limits import check_size
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.writes import Add, Append, Delete, Include, Replace, StepWrites, Update, WriteOp

_REMEMBERED = 4096


class StateWrites:
    """Logs writes for one store, in its writing thread.

    An append has to meet a list. Which keys hold something else is remembered per segment, together with the version it
    is true for, so that a step's commit need not read the state. Segment numbers are never reused for another session.
    A change to the session by another writer causes one more read.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._not_lists: dict[int, tuple[int, set[str]]] = {}

    def forget(self) -> None:
        """Called when a transaction was undone: what was remembered may never have happened."""
        self._not_lists.clear()

    def log(
        self,
        connection: Connection,
        row: SessionHead,
        ops: tuple[WriteOp, ...],
        *,
        version_before: int,
        text: str | None = None,
    ) -> None:
        """Log the writes of one commit, given as JSON in `text`; `row.version` is the version they lead to.

        Raises:
            InvalidWriteError: an append meets a value that is not a list.
            StateSizeExceededError: the state would be larger than the store accepts.
        """
        self._check_appends(connection, row, ops, version_before)
        log_writes(connection, row, text if text is not None else encode(StepWrites(ops=ops)).decode())
        # The writes' JSON is never smaller than what they add, so this sum is an upper bound for the state.
        may_exceed = self._limit is not None and row.state_base_bytes + row.state_since_bytes > self._limit
        if may_exceed or outweighs(row):
            state = load_custom_state(connection, row.segment, row.state_count)
            self._check_size(row.session_id, state, ops)
            materialise(connection, row, state)

    def keep(self, row: SessionHead, version_before: int) -> None:
        """Carry what is remembered over to the version of a commit that did not touch the state."""
        known = self._not_lists.get(row.segment)
        if known is not None and known[0] == version_before:
            self._not_lists[row.segment] = (row.version, known[1])

    def check_first(self, session_id: str, state: dict[str, JSON]) -> None:
        """Refuse an initial state that is too large."""
        self._check_size(session_id, state, ())

    def _check_size(self, session_id: str, state: dict[str, JSON], ops: tuple[WriteOp, ...]) -> None:
        if self._limit is not None:
            keys = tuple(dict.fromkeys(op.key for op in ops))
            check_size(session_id, "state", len(encode(state)), self._limit, keys)

    def _check_appends(
        self, connection: Connection, row: SessionHead, ops: tuple[WriteOp, ...], version_before: int
    ) -> None:
        # Popped, so that a refusal halfway leaves nothing remembered.
        known = self._not_lists.pop(row.segment, None)
        if known is not None and known[0] == version_before:
            not_lists = known[1]
        elif Append in map(type, ops):
            state = load_custom_state(connection, row.segment, row.state_count)
            not_lists = {key for key, value in state.items() if type(value) is not list}
        else:
            return
        for op in ops:
            match op:
                case Append(key=key) if key in not_lists:
                    raise InvalidWriteError(row.session_id, key, "append needs a list, but the key holds another value")
                case Append() | Delete() | Include():
                    not_lists.discard(op.key)
                case Replace(key=key, value=value):
                    (not_lists.discard if type(value) is list else not_lists.add)(key)
                case Add() | Update():
                    not_lists.add(op.key)
        if len(self._not_lists) >= _REMEMBERED:
            self._not_lists.clear()
        self._not_lists[row.segment] = (row.version, not_lists)
