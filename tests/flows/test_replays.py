"""Whatever a flow does, and wherever it is cut, each of its calls is made once and it ends with the same result."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from helix_agents import CallFailedError, FlowRun, tool
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.transcript import NOT_EXECUTED
from helix_agents.engine.steps.corrections import CONTINUE
from helix_agents.flows.replay import Calls, Replay, Returned, replies_in, turn_in

PATIENCE = 60


@tool
async def note(word: str) -> str:
    """Note a word."""
    return word


# A program is a word to note, or programs one after another, or programs at once.
PROGRAMS = st.recursive(
    st.text("ab", min_size=1, max_size=2),
    lambda inner: st.tuples(st.sampled_from(("then", "with", "first")), st.lists(inner, max_size=3)),
    max_leaves=12,
)


async def play(run: FlowRun, program: Any) -> str:
    """Do what a program says; a call that failed is a word like any other."""
    if isinstance(program, str):
        try:
            return await run.call(note, program)
        except CallFailedError as problem:
            return f"<{problem.why}>"
    how, parts = program
    match how:
        case "with":
            return f"({'|'.join(await asyncio.gather(*(play(run, part) for part in parts)))})"
        case "first" if parts:
            tasks = [asyncio.ensure_future(play(run, part)) for part in parts]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            early = sum(task in done for task in tasks)
            return f"[{early}:{'|'.join([await task for task in tasks])}]"
        case _:
            return f"{{{'|'.join([await play(run, part) for part in parts])}}}"


def word_of(call: ToolCall) -> str:
    assert isinstance(call.arguments, dict)
    return str(call.arguments["word"])


def answered(call: ToolCall, how: str) -> ToolMessage:
    """A result of a call: what it notes, an error, or that it never ran."""
    about: dict[str, Any] = {"tool_call_id": call.id, "tool_name": call.name}
    match how:
        case "fails":
            return ToolMessage(**about, content="no", error=True, code="tool_failed")
        case "is stopped":
            return ToolMessage(**about, content="no", error=True, code=NOT_EXECUTED)
        case _:
            return ToolMessage(**about, content=word_of(call))


def run_through(program: Any, outcomes: Sequence[str], *, kept: Callable[[], bool]) -> tuple[str, list[str]]:
    """Play a program step by step, each in a new replay unless it is `kept`; returns its result and the words of the
    calls that ran."""
    messages: list[Message] = [UserMessage(content="Go")]
    ran: list[str] = []
    left = list(outcomes)
    replay: Replay | None = None
    told = 0
    while True:
        step = len(messages)
        if replay is not None and kept():
            replay.give(replies_in(messages[told:]))
        else:
            turn = turn_in(messages)
            replay = Replay("play", {"note": note}, "s-1", turn, lambda run: play(run, program))
            replay.give(turn.replies)
        told = len(messages)
        match replay.next(retried=False):
            case Returned(value=value):
                return value, ran
            case Calls(calls=calls):
                made = tuple(
                    ToolCall(id=f"call_{step}_{place}", name=each.tool.name, arguments=each.arguments)
                    for place, each in enumerate(calls)
                )
        messages.append(AssistantMessage(tool_calls=made))
        for call in made:
            how = left.pop() if left else "runs"
            messages.append(answered(call, how))
            if how != "is stopped":
                ran.append(word_of(call))


def words(program: Any) -> list[str]:
    """The words that a program notes."""
    return [program] if isinstance(program, str) else [word for part in program[1] for word in words(part)]


@settings(deadline=None)
@given(PROGRAMS, st.lists(st.sampled_from(("runs", "fails", "is stopped")), max_size=20))
def test_every_call_runs_once_however_the_turn_is_cut(program: Any, outcomes: list[str]) -> None:
    results = [run_through(program, outcomes, kept=kept) for kept in (lambda: True, lambda: False)]
    assert all(sorted(ran) == sorted(words(program)) for _, ran in results)
    assert results[0] == results[1]


@settings(deadline=None)
@given(PROGRAMS, st.data())
def test_a_stop_changes_nothing_about_the_result(program: Any, data: st.DataObject) -> None:
    # Which of several calls is first is for whoever answers them to say, so those programs are left out.
    program = _without_first(program)
    stops = data.draw(st.lists(st.sampled_from(("runs", "is stopped")), max_size=20))
    result, _ = run_through(program, stops, kept=lambda: data.draw(st.booleans()))
    assert result == run_through(program, (), kept=lambda: False)[0]


async def insist(run: FlowRun, program: Any) -> str:
    """Do what a program says, and catch nothing."""
    if isinstance(program, str):
        return await run.call(note, program)
    how, parts = program
    if how == "with":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(insist(run, part)) for part in parts]
        return f"({'|'.join([task.result() for task in tasks])})"
    if how == "first":
        return f"({'|'.join(await asyncio.gather(*(insist(run, part) for part in parts)))})"
    return f"{{{'|'.join([await insist(run, part) for part in parts])}}}"


@settings(deadline=None)
@given(PROGRAMS, st.lists(st.sampled_from(("runs", "fails", "is stopped")), max_size=20))
def test_retries_end_as_if_nothing_had_failed(program: Any, outcomes: list[str]) -> None:
    messages: list[Message] = [UserMessage(content="Go")]
    left, done = list(outcomes), list[str]()
    value: str | None = None
    while value is None:
        turn = turn_in(messages)
        replay = Replay("insist", {"note": note}, "s-1", turn, lambda run: insist(run, program))
        replay.give(turn.replies)
        retried = True
        # One run: until it ends, or fails because of a call.
        while value is None:
            try:
                following = replay.next(retried=retried)
            except (CallFailedError, ExceptionGroup):
                assert not retried
                break
            if isinstance(following, Returned):
                value = following.value
                break
            retried = False
            step = len(messages)
            made = tuple(
                ToolCall(id=f"call_{step}_{place}", name=each.tool.name, arguments=each.arguments)
                for place, each in enumerate(following.calls)
            )
            results = [answered(call, left.pop() if left else "runs") for call in made]
            done.extend(word_of(call) for call, result in zip(made, results, strict=True) if not result.error)
            messages += [AssistantMessage(tool_calls=made), *results]
            replay.give(replies_in(messages[step:]))
    assert sorted(done) == sorted(words(program))
    assert value == run_through(_as_insisted(program), (), kept=lambda: False)[0]


def _as_insisted(program: Any) -> Any:
    if isinstance(program, str):
        return program
    how, parts = program
    return ("with" if how == "first" else how, [_as_insisted(part) for part in parts])


def _without_first(program: Any) -> Any:
    if isinstance(program, str):
        return program
    how, parts = program
    return ("with" if how == "first" else how, [_without_first(part) for part in parts])


def test_a_turn_goes_on_with_a_message_that_only_continues_it() -> None:
    go, reply = UserMessage(content="Go"), AssistantMessage(text="Done.")
    goes_on = UserMessage(content="Continue.", hidden=True, metadata={"helix": CONTINUE})
    assert turn_in([go, reply, goes_on]).message is go
    assert turn_in([go, reply, UserMessage(content="Again")]).message.content == "Again"


JOB = '''
import asyncio, os, signal, sys
from pathlib import Path
from helix_agents import Executor, FlowRun, flow, tool

BOOK = Path("book.txt")

@tool(effect="once")
def write(word: str) -> str:
    """Write a word into the book."""
    with BOOK.open("a") as book:
        book.write(word + "\\n")
    return word

@tool
def weigh(word: str) -> int:
    """Weigh a word, in a process that may die of it."""
    if word == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(word)

@flow(tools=[write, weigh])
async def author(run: FlowRun, text: str) -> int:
    """Write a text, word by word, and weigh it."""
    total = 0
    for word in text.split():
        await run.call(write, word)
        total += await run.call(weigh, word)
    return total

async def main() -> None:
    async with Executor.open("sqlite:///flow.db", agents=[author], lease_ms=500, janitor_seconds=0.1) as helix:
        run = await helix.get_handle(author, "s-1") or await helix.execute(author, "it was a dark night", "s-1")
        print(await run.output(), (await helix.sessions.runs("s-1")).items[0].attempt)

asyncio.run(main())
'''


def test_a_flow_whose_processes_are_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)

    def live(until: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(job), until]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)

    for word in ("it", "a", "night"):
        assert live(until=word).returncode == -signal.SIGKILL
    last = live(until="nothing")
    assert (last.returncode, last.stdout.split()) == (0, ["15", "4"]), last.stderr
    assert (tmp_path / "book.txt").read_text().split() == ["it", "was", "a", "dark", "night"]
