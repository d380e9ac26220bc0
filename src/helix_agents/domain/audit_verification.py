"""Reads an audit chain from its first row to its last, and reports what is wrong and where, in constant memory."""

from collections.abc import Iterable, Sequence

from helix_agents.domain.audit import AuditCheckpoint, AuditFinding, AuditRow, FindingKind, genesis, row_hash
from helix_agents.domain.records import Record

MOST_FINDINGS = 100
# How far from its place to look for a row before it counts as edited rather than moved.
MOST_STEPS_MOVED = 256


class AuditReport(Record):
    """The result of a verification. `more` counts the findings beyond those listed."""

    rows: int
    last_seq: int
    head: str
    checkpoints: int
    findings: tuple[AuditFinding, ...]
    more: int = 0

    @property
    def intact(self) -> bool:
        return not self.findings


class AuditVerifier:
    """Takes rows as the store returns them. Pass only checkpoints whose signature was checked.

    `start` is the checkpoint up to which retention removed the rows: the first row has to follow it.
    """

    def __init__(
        self,
        store_id: str,
        checkpoints: Sequence[AuditCheckpoint] = (),
        *,
        start: AuditCheckpoint | None = None,
        bad_checkpoints: Sequence[AuditFinding] = (),
    ) -> None:
        self._rows = 0
        self._seq = 0 if start is None else start.seq
        self._head = genesis(store_id) if start is None else start.head
        self._head_is_known = True
        self._findings: list[AuditFinding] = []
        self._more = 0
        later = [checkpoint for checkpoint in checkpoints if checkpoint.seq > self._seq]
        self._ahead = sorted(later, key=lambda checkpoint: checkpoint.seq, reverse=True)
        self._checkpoints = len(self._ahead)
        self._last_good = self._seq
        for finding in bad_checkpoints:
            self._add(finding)

    def feed(self, row: AuditRow) -> None:
        """Check the next row."""
        self._rows += 1
        if row.seq <= self._seq:
            self._came_late(row.seq)
            return
        if row.seq > self._seq + 1:
            self._gap(row.seq)
        self._look_at(row)
        self._seq = row.seq
        self._head = row.hash
        self._head_is_known = True
        self._meet_checkpoints()

    def finish(self) -> AuditReport:
        """Return what was found, including at the end of the chain."""
        if self._ahead:
            last = self._ahead[0].seq
            self._find(
                "cut_tail",
                self._seq + 1,
                f"The chain ends at row {self._seq}, but a checkpoint saw row {last}: its end was cut off.",
                last,
            )
        return AuditReport(
            rows=self._rows,
            last_seq=self._seq,
            head=self._head,
            checkpoints=self._checkpoints,
            findings=tuple(self._findings),
            more=self._more,
        )

    def _came_late(self, seq: int) -> None:
        missed = ("deleted", seq, seq)
        # It was counted as missing when the rows after it came.
        self._findings = [found for found in self._findings if (found.kind, found.seq, found.last_seq) != missed]
        self._find("reordered", seq, f"Row {seq} comes after row {self._seq}.")

    def _gap(self, found: int) -> None:
        first, last = self._seq + 1, found - 1
        which = f"Row {first} is" if first == last else f"Rows {first} to {last} are"
        self._find("deleted", first, f"{which} missing.", last)
        # The next row does not follow the row before the gap; reporting that as well would be a second finding.
        self._head_is_known = False
        while self._ahead and self._ahead[-1].seq < found:
            self._ahead.pop()

    def _look_at(self, row: AuditRow) -> None:
        if row_hash(row.seq, row.previous, row.entry) != row.hash:
            self._explain(row)
        elif self._head_is_known and row.previous != self._head:
            # This row is intact but follows a row other than the one that is there: the row before it was replaced.
            self._edited(self._seq if self._rows > 1 else row.seq)

    def _explain(self, row: AuditRow) -> None:
        written = _written_as(row)
        if written is None:
            self._edited(row.seq)
        else:
            self._find("reordered", row.seq, f"Row {row.seq} was written as row {written}: it was moved.")

    def _edited(self, seq: int) -> None:
        # A row whose content and hash were both replaced is noticed twice: by itself and by the row after it.
        if not any(finding.seq == seq and finding.kind in ("edited", "reordered") for finding in self._findings[-2:]):
            self._find("edited", seq, f"Row {seq} is not what was written: it was edited.")

    def _meet_checkpoints(self) -> None:
        while self._ahead and self._ahead[-1].seq == self._seq:
            checkpoint = self._ahead.pop()
            if checkpoint.head == self._head:
                self._last_good = self._seq
                continue
            first = self._last_good + 1
            # A break in this stretch was already reported; the checkpoint then only confirms it.
            if not any(
                first <= finding.seq <= self._seq and finding.kind != "bad_checkpoint" for finding in self._findings
            ):
                self._find(
                    "rewritten",
                    first,
                    f"Rows {first} to {self._seq} fit together, but the checkpoint at row {self._seq} saw others: "
                    "they were rewritten.",
                    self._seq,
                )
            self._last_good = self._seq

    def _find(self, kind: FindingKind, seq: int, sentence: str, last_seq: int | None = None) -> None:
        self._add(AuditFinding(kind=kind, seq=seq, last_seq=seq if last_seq is None else last_seq, sentence=sentence))

    def _add(self, finding: AuditFinding) -> None:
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(finding)
        else:
            self._more += 1


def verify_rows(
    rows: Iterable[AuditRow],
    store_id: str,
    checkpoints: Sequence[AuditCheckpoint] = (),
    *,
    start: AuditCheckpoint | None = None,
    bad_checkpoints: Sequence[AuditFinding] = (),
) -> AuditReport:
    """Verify rows that are in memory; use `AuditVerifier` for rows that are read bit by bit."""
    verifier = AuditVerifier(store_id, checkpoints, start=start, bad_checkpoints=bad_checkpoints)
    for row in rows:
        verifier.feed(row)
    return verifier.finish()


def _written_as(row: AuditRow) -> int | None:
    """The nearby number with which this row's hash is correct, if there is one."""
    for step in range(1, MOST_STEPS_MOVED + 1):
        for seq in (row.seq - step, row.seq + step):
            if seq > 0 and row_hash(seq, row.previous, row.entry) == row.hash:
                return seq
    return None
