"""How a thread tells tasks that their work is done: in order, and also when somebody closes or the system has less."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from helix_agents.backends.sqlite import mailboxes
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.mailboxes import Mailbox, Mailboxes

SOON = 10.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Told:
    """Something done, that notes its name where it is told."""

    def __init__(self, name: int, heard: list[int]) -> None:
        self._name = name
        self._heard = heard

    def answer(self) -> None:
        self._heard.append(self._name)


def without_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd")


def with_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(mailboxes.os, "eventfd", refuse)


def as_it_is(_: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize("system", [as_it_is, without_counters, with_none_left])
async def test_what_threads_post_is_told_in_the_loop_and_in_order(
    monkeypatch: pytest.MonkeyPatch, system: Callable[[pytest.MonkeyPatch], None]
) -> None:
    system(monkeypatch)
    box, heard = Mailbox(asyncio.get_running_loop()), list[int]()

    def post_all() -> None:
        for number in range(0, 1_000, 2):
            box.post([Told(number, heard), Told(number + 1, heard)])

    await asyncio.to_thread(post_all)
    await until(lambda: len(heard) == 1_000)
    assert heard == list(range(1_000))
    box.close()


async def test_what_has_come_is_told_before_the_box_is_put_away_and_what_comes_late_all_the_same() -> None:
    box, heard = Mailbox(asyncio.get_running_loop()), list[int]()
    box.post([Told(1, heard)])
    box.close()
    assert heard == [1]
    await asyncio.to_thread(box.post, [Told(2, heard)])
    await until(lambda: heard == [1, 2])
    box.close()


def has_counter(box: Mailbox) -> bool:
    return vars(box)["_counter"] is not None


@pytest.mark.may_block("runs another event loop")
async def test_the_box_of_a_loop_that_is_over_is_put_away_by_the_next_that_asks() -> None:
    boxes, heard = Mailboxes(), list[int]()

    async def ask() -> Mailbox:
        return boxes.here()

    over = await asyncio.to_thread(lambda: asyncio.run(ask()))
    assert has_counter(over) is hasattr(os, "eventfd")
    assert await ask() is await ask()
    assert not has_counter(over)
    over.post([Told(1, heard)])
    assert heard == []
    boxes.close()


async def test_a_loop_that_runs_elsewhere_puts_its_box_away_itself() -> None:
    boxes, heard = Mailboxes(), list[int]()
    asked, closed = threading.Event(), threading.Event()

    async def ask() -> Mailbox:
        box = boxes.here()
        asked.set()
        await until(closed.is_set)
        box.post([Told(1, heard)])
        await until(lambda: heard == [1])
        return box

    elsewhere = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(ask())))
    assert await asyncio.to_thread(asked.wait, SOON)
    boxes.close()
    closed.set()
    assert not has_counter(await elsewhere)


@pytest.mark.parametrize("system", [as_it_is, without_counters])
async def test_a_file_is_written_and_closed_on_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: Callable[[pytest.MonkeyPatch], None]
) -> None:
    system(monkeypatch)
    database = await Database.open(tmp_path / "helix.db")
    await database.write(lambda connection: connection.execute("CREATE TABLE things (n INTEGER)"))

    def put(number: int) -> Callable[[Connection], None]:
        return lambda connection: connection.execute("INSERT INTO things VALUES (?)", (number,))

    await asyncio.gather(*(database.write(put(number)) for number in range(100)))
    assert await database.read(lambda connection: connection.all("SELECT count(*) FROM things")) == [(100,)]
    boxes = [vars(lane)["_mailboxes"].here() for lane in (database._reader, database._writer)]
    assert [has_counter(box) for box in boxes] == [hasattr(os, "eventfd")] * 2
    await database.close()
    assert not any(has_counter(box) for box in boxes)
