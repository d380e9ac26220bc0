"""History is stored once, and goes with the last one who sees it."""

from helix_agents.backends.in_memory.lineage import (
    MessageEntry,
    Segment,
    fork,
    newest_messages,
    next_state_entry,
    release,
    state_at,
)
from helix_agents.domain.records import encode
from helix_agents.domain.writes import Append, Replace, WriteOp, apply_writes


def write(segment: Segment, *texts: str) -> None:
    segment.messages.extend(MessageEntry(text.encode(), 0) for text in texts)


def log(segment: Segment, *ops: WriteOp) -> None:
    for op in ops:
        count = segment.state_boundary + len(segment.states)
        state = apply_writes(state_at(segment, count), (op,))
        segment.states.append(next_state_entry(segment, count, (op,), state))


def texts(segment: Segment, count: int) -> list[str]:
    return [entry.data.decode() for _, entry in newest_messages(segment, count)][::-1]


def branch(segment: Segment, messages: int, states: int = 0) -> Segment:
    new = fork(segment, "branch", messages=messages, states=states)
    assert new.parent is not None
    new.parent.children.append(new)
    return new


def test_a_fork_sees_what_was_there_and_writes_its_own():
    source = Segment(owner="s")
    write(source, "a", "b", "c")
    forked = branch(source, 2)
    write(forked, "x")
    write(source, "d")
    assert texts(forked, 3) == ["a", "b", "x"]
    assert texts(forked, 1) == ["a"]
    assert texts(source, 4) == ["a", "b", "c", "d"]
    assert [number for number, _ in newest_messages(forked, 3)] == [3, 2, 1]


def test_a_fork_of_a_fork_stands_on_the_oldest_segment_that_holds_its_end():
    source = Segment(owner="s")
    write(source, "a", "b", "c")
    middle = branch(source, 3)
    write(middle, "x")
    assert branch(middle, 2).parent is source
    assert branch(middle, 4).parent is middle


def test_the_state_of_any_moment_can_be_built():
    source = Segment(owner="s")
    log(source, Replace(key="n", value=1), Append(key="log", items=["a"]), Replace(key="n", value=2))
    forked = branch(source, 0, 2)
    log(forked, Append(key="log", items=["b"]))
    assert [state_at(source, count) for count in range(4)] == [
        {},
        {"n": 1},
        {"n": 1, "log": ["a"]},
        {"n": 2, "log": ["a"]},
    ]
    assert state_at(forked, 3) == {"n": 1, "log": ["a", "b"]}


def test_keeping_states_costs_no_more_than_the_writes_did():
    source = Segment(owner="s")
    log(source, *(Append(key="log", items=["entry"]) for _ in range(500)))
    written = sum(len(encode(entry.ops)) for entry in source.states)
    kept = sum(len(encode(entry.state)) for entry in source.states if entry.state is not None)
    assert kept <= 2 * written
    assert state_at(source, 500) == {"log": ["entry"] * 500}


def test_what_nobody_sees_is_erased():
    source = Segment(owner="s")
    write(source, "a", "b", "c", "d")
    log(source, Replace(key="n", value=1), Replace(key="n", value=2))
    short, long = branch(source, 1, 1), branch(source, 3, 1)
    release(source)
    assert texts(source, 3) == ["a", "b", "c"]
    assert len(source.messages) == 3
    assert len(source.states) == 1
    assert (texts(short, 1), texts(long, 3)) == (["a"], ["a", "b", "c"])
    release(long)
    assert len(source.messages) == 1
    assert texts(short, 1) == ["a"]
    release(short)
    assert source.messages == []
    assert source.states == []


def test_a_living_session_loses_nothing_when_its_branch_goes():
    source = Segment(owner="s")
    write(source, "a", "b")
    release(branch(source, 1))
    assert texts(source, 2) == ["a", "b"]
    assert source.children == []
