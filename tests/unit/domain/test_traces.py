"""Ids of traces and spans are found by every process alike, and are such as tracing backends take."""

import pytest

from helix_agents.domain.traces import (
    TracePlace,
    read_trace_place,
    span_id_of_errand,
    span_id_of_run,
    trace_id_of,
)


def test_ids_are_hexadecimal_and_the_same_in_every_version() -> None:
    assert trace_id_of("trace_1") == trace_id_of("trace_1") == "3ccba486a2c41f7433cfebeeaf770a32"
    assert span_id_of_run("run_1") == span_id_of_run("run_1") == "4a04cde16e1c7488"
    assert span_id_of_errand("run_1") != span_id_of_run("run_1")


def test_a_trace_id_is_its_own_unless_it_is_none() -> None:
    assert trace_id_of("ab" * 16) == "ab" * 16
    assert trace_id_of("0" * 32) != "0" * 32
    assert len(trace_id_of("AB" * 16)) == 32


@pytest.mark.parametrize(
    "told",
    [None, "", "nonsense", "1" * 32, "1" * 32 + "-" + "g" * 16, "0" * 32 + "-" + "1" * 16, "1" * 32 + "-" + "0" * 16],
)
def test_a_place_that_is_none_is_not_read(told: str | None) -> None:
    assert read_trace_place(told) is None


def test_a_place_is_read_as_it_was_written() -> None:
    place = TracePlace("1" * 32, "2" * 16)
    assert read_trace_place(str(place)) == place
