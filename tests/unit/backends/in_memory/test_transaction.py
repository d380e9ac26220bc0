"""Changes that all stand or are all taken back."""

from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.ports.state_store import StoreLimits
from helix_agents.system import RandomIds


def begin() -> Transaction:
    return Transaction(Tables(), now=1, ids=RandomIds(), limits=StoreLimits())


def test_every_change_is_taken_back_the_latest_first():
    tx = begin()
    flat, nested, log, logs = {"kept": 1, "gone": 2}, {"old": {"a": 1}}, ["x"], {"old": ["y"]}
    tx.put(flat, "kept", 10)
    tx.put(flat, "kept", 11)
    tx.put(flat, "new", 12)
    tx.remove(flat, "gone")
    tx.remove(flat, "new")
    tx.remove(flat, "never there")
    tx.put(tx.within(nested, "old"), "b", 2)
    tx.put(tx.within(nested, "fresh"), "c", 3)
    tx.append(log, "z")
    tx.append_under(logs, "old", "z")
    tx.append_under(logs, "fresh", "z")
    assert (flat, nested) == ({"kept": 11}, {"old": {"a": 1, "b": 2}, "fresh": {"c": 3}})
    assert (log, logs) == (["x", "z"], {"old": ["y", "z"], "fresh": ["z"]})
    tx.undo()
    assert (flat, nested) == ({"kept": 1, "gone": 2}, {"old": {"a": 1}})
    assert (log, logs) == (["x"], {"old": ["y"]})


def test_what_has_to_happen_afterwards_happens_only_if_the_changes_stand():
    happened: list[str] = []
    undone = begin()
    undone.afterwards(lambda: happened.append("undone"))
    undone.undo()
    concluded = begin()
    concluded.afterwards(lambda: happened.append("first"))
    concluded.afterwards(lambda: happened.append("second"))
    concluded.conclude()
    assert happened == ["first", "second"]
