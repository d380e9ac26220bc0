"""Writes the golden backup, once per format: uv run python -m tests.capabilities.golden FOLDER."""

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.capabilities.test_backup import contents, fill
from tests.capabilities.worlds import World


async def write(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        world = await World.make(Path(home))
        await fill(world)
        async with world.open("ann", face="operator") as state:
            await state.call("state.backup.create")
            values = await contents(state)
        [made] = world.files("backups")
        shutil.copy(made, folder / "state-v1.helixbackup")
        shutil.copy(world.vault.path, folder / "vault.json")
        (folder / "state-v1.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
