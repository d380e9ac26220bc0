"""An audit chain shows what was done to it, and where."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from helix_agents.domain.audit import AuditCheckpoint, AuditFinding, AuditRow, entry_text, genesis, next_row
from helix_agents.domain.audit_verification import MOST_FINDINGS, AuditReport, AuditVerifier, verify_rows
from helix_agents.domain.errors import UnstorableValueError

STORE = "store_1"


def chain(
    count: int, store_id: str = STORE, start: AuditCheckpoint | None = None, what: str = "call"
) -> list[AuditRow]:
    rows: list[AuditRow] = []
    seq, head = (0, genesis(store_id)) if start is None else (start.seq, start.head)
    for number in range(count):
        row = next_row(seq, head, entry_text({"capability": what, "number": number}))
        rows.append(row)
        seq, head = row.seq, row.hash
    return rows


def seen_at(rows: Sequence[AuditRow], seq: int) -> AuditCheckpoint:
    row = next(row for row in rows if row.seq == seq)
    return AuditCheckpoint(store_id=STORE, seq=seq, head=row.hash, created_at="2026-03-25T14:00:00+00:00")


def found(report: AuditReport) -> list[tuple[str, int, int]]:
    return [(finding.kind, finding.seq, finding.last_seq) for finding in report.findings]


ROWS = chain(20)
CHECKPOINTS = [seen_at(ROWS, 8), seen_at(ROWS, 16)]


def test_an_untouched_chain_is_intact() -> None:
    report = verify_rows(ROWS, STORE, CHECKPOINTS)
    assert report.intact
    assert (report.rows, report.last_seq, report.head, report.checkpoints) == (20, 20, ROWS[-1].hash, 2)
    assert verify_rows([], STORE).intact


def test_an_edit_is_found_at_its_row() -> None:
    rows = [*ROWS]
    rows[10] = replace(rows[10], entry=rows[10].entry.replace("call", "kill"))
    report = verify_rows(rows, STORE, CHECKPOINTS)
    assert found(report) == [("edited", 11, 11)]
    assert "Row 11" in report.findings[0].sentence


def test_an_edit_with_a_fitting_hash_is_found_by_the_row_after_it() -> None:
    rows = [*ROWS]
    rows[10] = next_row(10, rows[9].hash, entry_text({"capability": "kill"}))
    assert found(verify_rows(rows, STORE, CHECKPOINTS)) == [("edited", 11, 11)]


@pytest.mark.parametrize("field", ["previous", "hash"])
def test_a_touched_hash_is_found_once(field: str) -> None:
    rows = [*ROWS]
    rows[10] = replace(rows[10], **{field: "0" * 64})
    assert found(verify_rows(rows, STORE, CHECKPOINTS)) == [("edited", 11, 11)]


@pytest.mark.parametrize(
    ("gone", "expected"), [([11], (11, 11)), ([11, 12, 13], (11, 13)), ([1], (1, 1)), ([8], (8, 8))]
)
def test_a_deletion_is_found_and_counted(gone: list[int], expected: tuple[int, int]) -> None:
    rows = [row for row in ROWS if row.seq not in gone]
    assert found(verify_rows(rows, STORE, CHECKPOINTS)) == [("deleted", *expected)]


def test_rows_that_changed_places_are_found_at_both() -> None:
    rows = [*ROWS]
    rows[4], rows[9] = replace(rows[9], seq=5), replace(rows[4], seq=10)
    report = verify_rows(rows, STORE, CHECKPOINTS)
    assert found(report) == [("reordered", 5, 5), ("reordered", 10, 10)]
    assert "written as row 10" in report.findings[0].sentence


def test_rows_that_come_in_another_order_are_found() -> None:
    rows = [*ROWS]
    rows[4], rows[5] = rows[5], rows[4]
    assert found(verify_rows(rows, STORE, CHECKPOINTS)) == [("reordered", 5, 5)]


def test_a_row_that_comes_twice_is_found() -> None:
    assert found(verify_rows([*ROWS[:6], ROWS[5], *ROWS[6:]], STORE, CHECKPOINTS)) == [("reordered", 6, 6)]


@pytest.mark.parametrize("left", [0, 7, 10, 15])
def test_a_cut_tail_is_found_by_the_checkpoint_beyond_it(left: int) -> None:
    report = verify_rows(ROWS[:left], STORE, CHECKPOINTS)
    assert found(report) == [("cut_tail", left + 1, 16)]
    assert "cut off" in report.findings[0].sentence


def test_what_happened_after_the_last_checkpoint_is_not_promised() -> None:
    assert verify_rows(ROWS[:16], STORE, CHECKPOINTS).intact


def test_a_chain_written_anew_is_found_between_two_checkpoints() -> None:
    forged = [*ROWS[:9], *chain(11, start=seen_at(ROWS, 9), what="lie")]
    assert verify_rows(forged, STORE).intact
    assert found(verify_rows(forged, STORE, CHECKPOINTS)) == [("rewritten", 9, 16)]
    assert found(verify_rows(chain(20, what="lie"), STORE, CHECKPOINTS)) == [("rewritten", 1, 8), ("rewritten", 9, 16)]


def test_the_rows_of_another_store_are_not_taken_for_this_ones() -> None:
    assert found(verify_rows(chain(20, "store_2"), STORE)) == [("edited", 1, 1)]


def test_rows_that_retention_removed_are_covered_by_the_checkpoint_they_ended_with() -> None:
    kept, start = ROWS[8:], CHECKPOINTS[0]
    report = verify_rows(kept, STORE, CHECKPOINTS, start=start)
    assert report.intact
    assert report.checkpoints == 1
    assert found(verify_rows(kept, STORE, CHECKPOINTS)) == [("deleted", 1, 8)]
    assert found(verify_rows(kept[1:], STORE, CHECKPOINTS, start=start)) == [("deleted", 9, 9)]
    assert found(verify_rows(kept, STORE, CHECKPOINTS, start=replace(start, head="0" * 64))) == [("edited", 9, 9)]


def test_findings_are_listed_up_to_a_limit_and_counted_beyond_it() -> None:
    rows = [replace(row, entry="{}") for row in chain(MOST_FINDINGS + 50)]
    report = verify_rows(rows, STORE)
    assert (len(report.findings), report.more) == (MOST_FINDINGS, 50)
    assert not report.intact


def test_bad_checkpoints_are_part_of_the_report() -> None:
    bad = AuditFinding(kind="bad_checkpoint", seq=3, last_seq=3, sentence="The checkpoint at row 3 proves nothing.")
    assert verify_rows(ROWS, STORE, bad_checkpoints=[bad]).findings == (bad,)


def test_a_verifier_takes_rows_one_by_one() -> None:
    verifier = AuditVerifier(STORE, CHECKPOINTS)
    for row in ROWS:
        verifier.feed(row)
    assert verifier.finish() == verify_rows(iter(ROWS), STORE, CHECKPOINTS)


def test_equal_entries_have_equal_texts() -> None:
    assert entry_text({"b": 1, "a": {"d": [1, 2.5], "c": "é\n"}}) == '{"a":{"c":"é\\n","d":[1,2.5]},"b":1}'
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    for unstorable in ({"a": float("nan")}, {"a": b"x"}, {"a": {1: 2}}, {"a": {1, 2}}, {"a": "\ud800"}, deep):
        with pytest.raises(UnstorableValueError):
            entry_text(unstorable)


def edit(rows: list[AuditRow], at: int, random: Random) -> None:
    rows[at] = replace(rows[at], entry=entry_text({"forged": random.random()}))


def replace_whole(rows: list[AuditRow], at: int, random: Random) -> None:
    rows[at] = next_row(rows[at].seq - 1, rows[at].previous, entry_text({"forged": random.random()}))


def delete(rows: list[AuditRow], at: int, _: Random) -> None:
    del rows[at]


def swap_content(rows: list[AuditRow], at: int, random: Random) -> None:
    other = random.choice([place for place in range(len(rows)) if place != at])
    rows[at], rows[other] = replace(rows[other], seq=rows[at].seq), replace(rows[at], seq=rows[other].seq)


def cut(rows: list[AuditRow], at: int, _: Random) -> None:
    del rows[at:]


def rewrite(rows: list[AuditRow], at: int, _: Random) -> None:
    before = AuditCheckpoint(store_id=STORE, seq=at, head=rows[at].previous, created_at="")
    rows[at:] = chain(len(rows) - at, start=before, what="lie")


@given(
    size=st.integers(2, 40),
    place=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**32),
    attack=st.sampled_from([edit, replace_whole, delete, swap_content, cut, rewrite]),
)
def test_every_attack_up_to_the_last_checkpoint_is_found_and_located(
    size: int, place: float, seed: int, attack: Callable[[list[AuditRow], int, Random], None]
) -> None:
    rows = chain(size)
    checkpoints = [seen_at(rows, seq) for seq in range(5, size, 5)] + [seen_at(rows, size)]
    at = int(place * size)
    touched = [*rows]
    attack(touched, at, Random(seed))
    report = verify_rows(touched, STORE, checkpoints)
    assert any(finding.seq <= at + 1 <= finding.last_seq for finding in report.findings)
