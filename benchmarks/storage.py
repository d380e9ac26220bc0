"""How many bytes a conversation takes on disk, what a branch adds, and what a deletion leaves behind.

Run: uv run python benchmarks/storage.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from helix_agents.backends.sqlite import SQLiteStateStore, open_backend
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.commits import StartRun, StepCommit
from helix_agents.domain.messages import AssistantMessage, UserMessage
from helix_agents.domain.runs import Fence, RunUpdate
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.domain.writes import Append, StepWrites

WORD = "tide"


def text(marker: str, size: int = 1000) -> str:
    """Text of this size that can be found again byte for byte."""
    return (f"{marker} " + f"{WORD} " * size)[:size]


async def turn(store: SQLiteStateStore, session_id: str, number: int, size: int = 1000) -> None:
    """One turn: a question, an answer, a settled run."""
    run_id = f"run-{session_id}-{number}"
    current = await store.get_current_run(session_id)
    state = await store.load_state(session_id)
    await store.start_run(
        StartRun(
            session_id=session_id,
            run_id=run_id,
            expected_version=state.version,
            expected_run=current.fence if current is not None else None,
            append_messages=(UserMessage(content=text(f"question {number} of {session_id}", size)),),
        )
    )
    await store.save_state_and_promote_staging(
        session_id,
        state,
        [AssistantMessage(text=text(f"answer {number} of {session_id}", size), stop_reason="end_turn")],
        CheckpointMeta(step_id=f"{run_id}.1", step_count=1),
        commit=StepCommit(
            fence=Fence(run_id=run_id), step=1, run=RunUpdate(status="completed", completion_reason="stop")
        ),
    )


def size_of(path: Path) -> int:
    """Bytes of the database file."""
    return path.stat().st_size


def files_with(word: str, folder: Path) -> int:
    """How many files contain this word."""
    return sum(word.encode() in file.read_bytes() for file in folder.iterdir() if file.is_file())


async def conversation(folder: Path, turns: int) -> dict[str, float]:
    """A session of many turns, a branch of it, and what is left when it is deleted."""
    path = folder / "turns.db"
    store = await SQLiteStateStore.open(path, synchronous="NORMAL")
    await store.create_session("tides", CreateSession(agent_type="writer"))
    for number in range(1, turns + 1):
        await turn(store, "tides", number)
    await store.vacuum()
    whole = size_of(path)
    await store.clone_session(BranchPoint(from_session_id="tides"), "branch")
    await turn(store, "branch", turns + 1, size=100)
    await store.vacuum()
    branched = size_of(path)
    await store.delete_session("tides")
    kept = len(await store.load_transcript("branch"))
    assert kept == 2 * turns + 2, kept
    await store.delete_session("branch")
    await store.vacuum()
    left = await asyncio.to_thread(files_with, WORD, folder)
    await store.close()
    return {"bytes_200_turns": whole, "branch_bytes": branched - whole, "files_with_text_after_delete": left}


async def growing_state(folder: Path, steps: int) -> dict[str, float]:
    """One list that grows by 100 bytes per step: bytes on disk, and the cost of late commits relative to early ones."""
    path = folder / "state.db"
    store = await SQLiteStateStore.open(path)
    await store.create_session("grow", CreateSession(agent_type="writer"))
    await store.start_run(StartRun(session_id="grow", run_id="run"))
    state = await store.load_state("grow")
    seconds: list[float] = []
    for step in range(1, steps + 1):
        writes = StepWrites(ops=(Append(key="notes", items=[text(str(step), 100)], tool_call_id=f"call_{step}"),))
        meta = CheckpointMeta(step_id=f"run.{step}", step_count=step)
        commit = StepCommit(fence=Fence(run_id="run"), step=step, writes=writes)
        begin = time.perf_counter()
        await store.save_state_and_promote_staging("grow", state, (), meta, commit=commit)
        seconds.append(time.perf_counter() - begin)
    assert len((await store.load_state("grow")).custom_state["notes"]) == steps
    await store.vacuum()
    await store.close()
    # Medians around both steps: a single commit would mostly measure the disk.
    late, early = statistics.median(seconds[-100:]), statistics.median(seconds[5:105])
    return {"bytes_growing_state": size_of(path), "flatness_state": late / early}


async def streams(folder: Path, turns: int) -> int:
    """Bytes that the stream of the same conversation takes while it is kept: one delta per 40 characters."""
    path = folder / "stream.db"
    async with await open_backend(f"sqlite:///{path}", synchronous="NORMAL") as backend:
        for number in range(1, turns + 1):
            writer = await backend.streams.create_writer("tides", f"run-{number}", "writer", turn=number)
            answer = text(f"answer {number}")
            for at in range(0, len(answer), 40):
                await writer.write(
                    TextDelta(
                        session_id="tides",
                        run_id=f"run-{number}",
                        agent_type="writer",
                        step=1,
                        timestamp=number,
                        delta=answer[at : at + 40],
                    )
                )
            await writer.close()
        await backend.state.vacuum()
        return size_of(path)


async def measure(quick: bool) -> dict[str, float]:
    """All figures of this benchmark."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = await conversation(folder, 200)
        figures |= await growing_state(folder, 1000)
        if not quick:
            figures["flatness_state"] = statistics.median(
                [(await growing_state(Path(tempfile.mkdtemp(dir=name)), 1000))["flatness_state"] for _ in range(5)]
            )
        figures["stream_bytes_200_turns"] = await streams(folder, 200)
    return figures


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    figures = {name: round(value, 3) for name, value in asyncio.run(measure(parser.parse_args().quick)).items()}
    aims = {
        "bytes_200_turns": ("200 turns of 1,000 + 1,000 bytes", "0.8 MB"),
        "branch_bytes": ("a branch of it, with one turn", "20 KB"),
        "files_with_text_after_delete": ("files with text after delete and vacuum", "0"),
        "bytes_growing_state": ("1,000 appends of 100 bytes", "1.5 MB"),
        "flatness_state": ("commit at step 1,000 over step 10", "1.15"),
        "stream_bytes_200_turns": ("the stream of 200 turns, kept for a day", "-"),
    }
    print(f"{'SQLite file':44}{'measured':>12}{'aim':>10}")
    for name, (label, aim) in aims.items():
        print(f"{label:44}{figures[name]:>12,}{aim:>10}")
    nested = {name: value for name, value in figures.items() if name != "flatness_state"}
    print(json.dumps({**nested, "sqlite": {"flatness_state": figures["flatness_state"]}}))


if __name__ == "__main__":
    main()
