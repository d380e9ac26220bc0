"""An executor in a program that runs DBOS itself, and where DBOS keeps its tables when nobody says so."""

import asyncio
import sys
from pathlib import Path

import pytest

from helix_agents.domain.errors import InvalidStoreUrlError
from helix_agents.runtimes.dbos.executor import system_database_beside

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
    ],
)
def test_dbos_keeps_its_tables_beside_the_store(store: str, system: str):
    assert system_database_beside(store) == system


@pytest.mark.parametrize("store", ["memory://", "redis://host:6379/0"])
def test_a_store_with_no_place_for_dbos_is_named(store: str):
    with pytest.raises(InvalidStoreUrlError, match="give system_database_url"):
        system_database_beside(store)
