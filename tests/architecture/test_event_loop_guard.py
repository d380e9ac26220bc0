"""The guard against blocking the event loop does what the other tests rely on."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

import helix_agents
from tests.support.event_loop_guard import BlockingError


def product_call(function, *arguments):
    """Call from a frame that belongs to our package, as product code would."""
    code = compile("answer = function(*arguments)", f"{Path(helix_agents.__file__).parent}/backends/made_up.py", "exec")
    scope = {"function": function, "arguments": arguments}
    exec(code, scope)
    return scope["answer"]


async def test_sleeping_in_the_event_loop_is_an_error():
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        time.sleep(0)


async def test_waiting_without_blocking_is_welcome():
    await asyncio.sleep(0)
    await asyncio.to_thread(time.sleep, 0)


def test_sleeping_outside_the_event_loop_is_nobodys_business():
    time.sleep(0)


@pytest.mark.may_block("to show that the marker works")
async def test_a_test_may_say_that_it_blocks():
    time.sleep(0)


async def test_our_package_may_not_touch_a_file_in_the_event_loop(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("kept")
    with pytest.raises(BlockingError):
        product_call(path.read_text)
    assert path.read_text() == "kept"


async def test_our_package_may_start_a_process_and_import_a_module_in_the_event_loop():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "", stdout=subprocess.PIPE)
    await process.communicate()
    sys.modules.pop("sndhdr_not_there", None)
    with pytest.raises(ModuleNotFoundError):
        product_call(__import__, "sndhdr_not_there")


@pytest.fixture
def people(tmp_path):
    connection = apsw.Connection(str(tmp_path / "people.db"))
    connection.execute("create table people (id integer primary key, name text)")
    connection.execute("insert into people values (1, 'Ada')")
    return connection


async def test_a_read_by_key_may_run_in_the_event_loop(people):
    cursor = product_call(people.execute, "select name from people where id = ?", (1,))
    assert cursor.fetchall() == [("Ada",)]
    cursor = product_call(
        people.cursor().execute, "select name from people where id in (select value from json_each(?))", ("[1]",)
    )
    assert cursor.fetchall() == [("Ada",)]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("select id from people where name = 'Ada'", id="a scan"),
        pytest.param("update people set name = 'Grace' where id = 1", id="a write"),
        pytest.param("begin immediate", id="a lock"),
    ],
)
async def test_any_other_statement_may_not_run_in_the_event_loop(people, statement):
    with pytest.raises(BlockingError):
        product_call(people.execute, statement)
    with pytest.raises(BlockingError):
        product_call(people.cursor().execute, statement)
    assert await asyncio.to_thread(lambda: people.execute("select name from people").fetchall()) == [("Ada",)]
