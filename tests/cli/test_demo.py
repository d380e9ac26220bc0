"""`helix demo`: a real SIGKILL in the middle of a step, counted afterwards; and how it looks at a terminal."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import CONTROL_C, Terminal, helix
from tests.support.provider_server import Answer, ProviderServer, Received
from tests.support.provider_wire import ANTHROPIC, RESPONSES, Wire, Wired


def test_a_killed_worker_loses_nothing_and_nothing_is_done_twice(tmp_path: Path) -> None:
    done = helix(tmp_path, "demo", "--json", "--keep", "desk")
    found = done.json
    assert (done.code, found["held"], found["status"]) == (ExitCode.OK, True, "completed"), found
    assert [each["state"] for each in found["processes"]] == ["killed", "left", "left"]
    assert len({each["pid"] for each in found["processes"]}) == 3
    # The kill came while an order was with the shop and nobody had recorded its result.
    assert found["killed_with"]["orders"] == 1
    assert found["killed_with"]["researchers_done"] >= 1
    assert all(check["held"] for check in found["checks"])
    by = {entry["title"]: entry["pid"] for entry in found["book"]}
    assert by["Tide tables since 1833"] == found["processes"][0]["pid"], "the order was not placed again"
    assert sorted(entry["deed"] for entry in found["book"]) == ["order", "order", "order", "publish"]
    runs = helix(tmp_path, "sessions", "runs", "demo", "--store", "sqlite:///desk/demo.db", "--json").json["items"]
    assert [(run["turn"], run["attempt"], run["status"]) for run in runs] == [
        (2, 1, "completed"),
        (1, 2, "suspended_client_tool"),
    ]


def test_at_a_terminal_a_person_decides(tmp_path: Path) -> None:
    with Terminal(tmp_path, "demo") as terminal:
        terminal.wait_for("SIGKILL")
        terminal.wait_for("May the editor publish “One tide or two”?")
        terminal.press("n\n")
        terminal.wait_for("publish is denied")
        assert terminal.wait() == ExitCode.OK
    assert "reports published, one per approval: 0 (expected 0)" in terminal.shown
    assert "Nothing was lost, and nothing was done twice." in terminal.shown


def test_on_a_narrow_terminal_no_event_is_cut_and_a_folder_can_be_kept_twice(tmp_path: Path) -> None:
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "mine.txt").write_text("mine")
    with Terminal(tmp_path, "demo", "--yes", "--keep", "desk", columns=80) as terminal:
        assert terminal.wait() == ExitCode.OK
    last = terminal.shown[terminal.shown.rindex("╭") :]
    for told in ("it is not placed again", "the same run, its next attempt", "1 order in flight", "a row in the store"):
        assert told in last
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).splitlines())) <= 80

    again = helix(
        tmp_path, "demo", "--keep", "desk", settings={"HELIX_STORE": "sqlite:///mine.db", "UV_RUN_RECURSION_DEPTH": "1"}
    )
    assert again.code == ExitCode.OK, again.err
    assert {file.name for file in tmp_path.iterdir()} == {"desk"}, "the store of the settings is left alone"
    assert (tmp_path / "desk" / "mine.txt").read_text() == "mine"
    [look] = re.findall(r"uv run helix (sessions messages demo --store \S+)", again.out)
    assert "published" in helix(tmp_path, *look.split()).out


@pytest.mark.parametrize(
    ("moment", "keys"),
    [("SIGKILL", CONTROL_C), ("publish “One tide or two”?", CONTROL_C), ("publish “One tide or two”?", "\x04")],
)
def test_ctrl_c_or_d_ends_it_and_every_worker(tmp_path: Path, moment: str, keys: str) -> None:
    with Terminal(tmp_path, "demo", "--keep", "desk") as terminal:
        terminal.wait_for(moment)
        shown_before = len(terminal.shown)
        if keys == CONTROL_C:
            terminal.interrupt("Interrupted.")
        else:
            terminal.press(keys)
        assert terminal.wait() == ExitCode.INTERRUPTED
    assert "Interrupted." in terminal.shown
    if moment != "SIGKILL":
        assert "╭" not in terminal.shown[shown_before:], "the scene stands above the question already"
    for pid in {int(pid) for pid in re.findall(r"process (\d+) (?:starts|takes)", terminal.shown)}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


QUESTIONS = ["Which pull has the moon?", "Which rhythm has a bay?", "Which tables are there?"]


class Provider:
    """A provider whose model does the desk's work over HTTP, as any model would that reads its instructions."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._held: set[str] = set()

    def answer(self, received: Received) -> Answer:
        asked = json.dumps(received.body)
        if "You run a research desk" in asked:
            return self._wire.stream(self._editor(asked))
        # The answer names no question, or the next turn's would be taken for it.
        question = next(each for each in QUESTIONS if each in asked)
        if "bought '" not in asked:
            return self._wire.stream(Wired(calls=[("call_b", "buy_article", {"title": question})]))
        told = Wired(text=f"The sea answers in its own time: this is what {QUESTIONS.index(question)} came to.")
        if question == QUESTIONS[1] and question not in self._held:
            # Whoever asks for the first time hears half of it, and is killed while waiting for the rest.
            self._held.add(question)
            return self._wire.held(told, keep=15)
        return self._wire.stream(told)

    def _editor(self, asked: str) -> Wired:
        if "published '" in asked:
            return Wired(calls=[("call_f", "__finish__", {"title": "Tides", "summary": "The moon asks, bays answer."})])
        if "came to." in asked:
            return Wired(text="They are back.", calls=[("call_p", "publish", {"title": "Tides"})])
        delegated = [(f"call_{at}", "subagent__researcher", {"message": each}) for at, each in enumerate(QUESTIONS)]
        return Wired(text="Out you go.", calls=[("call_n", "take_note", {"question": "Why?"}), *delegated])


@pytest.fixture(scope="module")
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as listening:
        yield listening


@pytest.mark.parametrize(
    ("provider", "wire", "model"),
    [
        ("OPENAI", RESPONSES, "openai:gpt-5-mini"),
        # Five processes import its library, which takes seconds each.
        pytest.param("ANTHROPIC", ANTHROPIC, "anthropic:claude-sonnet-4-5", marks=pytest.mark.chaos),
    ],
)
def test_with_a_key_in_the_environment_a_real_model_is_asked(
    tmp_path: Path, server: ProviderServer, provider: str, wire: Wire, model: str
) -> None:
    """Over HTTP in the provider's own format; killed, recovered and counted all the same."""
    server.forget()
    server.will_by(Provider(wire).answer)
    keys = {f"{provider}_API_KEY": "a-key", f"{provider}_BASE_URL": server.url + wire.base_path}
    done = helix(tmp_path, "demo", "--json", "--keep", "desk", settings=keys)
    found = done.json
    assert (done.code, found["held"], found["status"]) == (ExitCode.OK, True, "completed"), found
    assert found["model"] == model
    assert [each["state"] for each in found["processes"]] == ["killed", "left", "left"]
    assert found["killed_with"]["orders"] == 1
    assert sorted(entry["title"] for entry in found["book"] if entry["deed"] == "order") == sorted(QUESTIONS)
    assert {request.body["model"] for request in server.requests} == {model.partition(":")[2]}
    assert len(server.requests) >= 9, "three turns of the editor, two of each researcher"


def test_a_script_is_followed_where_a_key_is_set_if_one_says_so(tmp_path: Path) -> None:
    keys = {"ANTHROPIC_API_KEY": "a-key", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    done = helix(tmp_path, "demo", "--json", "--scripted", settings=keys)
    assert (done.code, done.json["model"]) == (ExitCode.OK, "scripted")


def test_a_provider_that_refuses_is_told_with_a_way_out(tmp_path: Path, server: ProviderServer) -> None:
    server.forget()
    server.will_by(lambda _: ANTHROPIC.refusal(401, "authentication_error", "invalid x-api-key"))
    done = helix(tmp_path, "demo", "--json", settings={"ANTHROPIC_API_KEY": "stolen", "ANTHROPIC_BASE_URL": server.url})
    assert (done.code, done.json["error"]["code"]) == (ExitCode.FAILED, "worker_failed")
    assert "invalid x-api-key" in done.json["error"]["message"]
    assert "helix demo --scripted" in done.json["error"]["message"]


def test_a_model_that_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    done = helix(tmp_path, "demo", "--model", "teapot:brew", "--json")
    assert (done.code, done.json["error"]["code"]) == (ExitCode.SETUP, "unknown_model")


def test_a_model_and_a_script_at_once_are_too_much(tmp_path: Path) -> None:
    done = helix(tmp_path, "demo", "--model", "openai:gpt-5-mini", "--scripted", "--json")
    assert (done.code, done.json["error"]["code"]) == (ExitCode.USAGE, "usage")


def test_signals_have_the_numbers_we_say() -> None:
    assert ExitCode.INTERRUPTED == 128 + signal.SIGINT
