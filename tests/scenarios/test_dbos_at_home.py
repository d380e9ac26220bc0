"""An executor in a program that runs DBOS itself, and where DBOS keeps its tables when nobody says so."""

import asyncio
import re
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from helix_agents import DBOSAgentExecutor
from helix_agents.domain.errors import DBOSInUseError, InvalidStoreUrlError, StoreUnavailableError
from helix_agents.runtimes.dbos import instance, workflows
from helix_agents.runtimes.dbos.system_database import check_url, system_database_beside
from helix_agents.runtimes.executor.leases import LeaseKeeper

PROGRAM = """
import asyncio
import sys

from dbos import DBOS

from helix_agents import Agent, DBOSAgentExecutor, ScriptedModel
from helix_agents.domain.errors import DBOSInUseError

folder = sys.argv[1]
agent = Agent(name="guest", model=ScriptedModel(["Here I am."]))


@DBOS.workflow()
async def own_work() -> str:
    return "still at work"


async def main() -> None:
    url = f"sqlite:///{folder}/program.db"
    DBOS(config={"name": "program", "system_database_url": url, "executor_id": "home", "log_level": "ERROR"})
    DBOS.launch()
    for wanted in ({}, {"system_database_url": url, "executor_id": "another"}):
        try:
            async with DBOSAgentExecutor.open(f"sqlite:///{folder}/helix.db", agents=[agent], **wanted):
                print("got in")
        except DBOSInUseError as refused:
            print(refused.code)
    async with DBOSAgentExecutor.open(f"sqlite:///{folder}/helix.db", agents=[agent], system_database_url=url) as helix:
        print(await (await helix.execute(agent, "Hi", "s-1")).output())
    print(await (await DBOS.start_workflow_async(own_work)).get_result())
    DBOS.destroy()


asyncio.run(main())
"""


async def test_an_executor_joins_the_dbos_that_its_program_launched_and_leaves_it_there(tmp_path: Path):
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            said, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert said.decode().split("\n") == ["dbos_in_use", "dbos_in_use", "Here I am.", "still at work", ""]
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("store", "system"),
    [
        ("sqlite:////var/helix.db", "sqlite:////var/helix.db.dbos"),
        ("sqlite:///helix.db?synchronous=normal", "sqlite:///helix.db.dbos"),
        ("postgresql://me:secret@host:5433/app", "postgresql://me:secret@host:5433/app"),
        ("postgres://host/app?schema=helix&pool_size=3&sslmode=require", "postgresql://host/app?sslmode=require"),
        ("postgresql:///app?host=/run/postgresql&schema=helix", "postgresql:///app?host=/run/postgresql"),
        (
            "postgresql://me@one:1,two:2/app?sslmode=require",
            "postgresql://me@/app?host=one:1&host=two:2&sslmode=require",
        ),
    ],
)
def test_dbos_keeps_its_tables_beside_the_store(store: str, system: str):
    assert system_database_beside(store) == system
    check_url(system)


@pytest.mark.parametrize("store", ["memory://", "redis://:secret@host:6379/0"])
def test_a_store_with_no_place_for_dbos_is_named(store: str):
    with pytest.raises(InvalidStoreUrlError, match="give system_database_url") as refused:
        system_database_beside(store)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "teaches"),
    [
        (
            "postgresql://me:secret@host/app?schema=helix",
            "has no option 'schema'; leave it out; options of a store",
        ),
        ("postgresql://me:secret@host/app?poolsize=3&foo=1", "has no option 'foo', 'poolsize'"),
        ("sqlite:///{folder}/dbos.db?synchronous=normal", "has no option 'synchronous'"),
        ("postgresql://me:secret@host", "it names no database; write postgresql://host/name"),
        ("postgresql://me:secret@one:1,two:2/app", "several hosts are written as postgresql://user@/name?host=one:"),
        ("postgresql://me:secret@host:port/app", "host and port cannot be told apart"),
        ("mysql://me:secret@host/app", "DBOS keeps its tables in SQLite or PostgreSQL"),
        ("dbos.db", "DBOS keeps its tables in SQLite or PostgreSQL; write sqlite:///… or postgresql://…"),
        ("", "DBOS keeps its tables in SQLite or PostgreSQL"),
    ],
)
async def test_a_system_database_that_dbos_cannot_use_is_named_and_nothing_is_made_there(
    tmp_path: Path, url: str, teaches: str
) -> None:
    system = url.format(folder=tmp_path)
    with pytest.raises(InvalidStoreUrlError, match=re.escape(teaches)) as refused:
        await DBOSAgentExecutor.open("memory://", system_database_url=system)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////var/dbos.db?timeout=5",
        "postgres://me@host:5433/app?sslmode=require&connect_timeout=3&application_name=helix",
        "postgresql+psycopg://me@/app?host=one:1&host=two:2&target_session_attrs=any",
        "postgresql:///app?host=/run/postgresql",
    ],
)
def test_a_system_database_that_dbos_can_use_is_left_to_it(url: str) -> None:
    check_url(url)


class Engine:
    """Stands for DBOS, which takes a second to launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = 0
        self.begun, self.may_go_on, self.launched = threading.Event(), threading.Event(), threading.Event()
        self.may_go_on.set()
        monkeypatch.setattr(instance, "_launch", self._launch)
        monkeypatch.setattr("dbos.DBOS.destroy", self._destroy)

    def _launch(self, wanted: instance.Wanted, executor_id: str) -> Any:
        self.begun.set()
        self.may_go_on.wait(10)
        self.running += 1
        self.launched.set()
        return instance._Launched(wanted, executor_id, is_ours=True)  # pyright: ignore[reportPrivateUsage]

    def _destroy(self) -> None:
        self.running -= 1


async def test_an_executor_that_cannot_begin_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: LeaseKeeper) -> None:
        raise StoreUnavailableError("the store", "away")

    engine = Engine(monkeypatch)
    monkeypatch.setattr(LeaseKeeper, "start", refuse)
    for name in ("one", "another"):
        with pytest.raises(StoreUnavailableError):
            await DBOSAgentExecutor.open(f"sqlite:///{tmp_path}/{name}.db")
    assert (engine.running, workflows.HOSTS["helix"]) == (0, [])


async def test_who_is_cancelled_while_dbos_is_launched_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch)
    engine.may_go_on.clear()
    launching = asyncio.create_task(instance.acquire(instance.Wanted(system_database_url="sqlite:///one"), "me"))
    await asyncio.to_thread(engine.begun.wait, 10)
    launching.cancel()
    engine.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await launching
    await asyncio.to_thread(engine.launched.wait, 10)
    assert engine.running == 0


async def test_a_python_whose_sqlite_is_too_old_for_dbos_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    with pytest.raises(
        InvalidStoreUrlError, match=r"DBOS needs SQLite 3\.42\.0, but this Python has .* system_database_url"
    ):
        await instance.acquire(instance.Wanted(system_database_url="sqlite:///one"), "me")


async def test_what_another_dbos_runs_on_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    Engine(monkeypatch)
    await instance.acquire(instance.Wanted(system_database_url="postgresql://me:secret@host/app"), "me")
    with pytest.raises(DBOSInUseError) as refused:
        await instance.acquire(instance.Wanted(system_database_url="postgresql://me:hidden@host/other"), "me")
    await instance.release()
    assert "host/other" in str(refused.value)
    assert not any(password in str(refused.value) for password in ("secret", "hidden"))
