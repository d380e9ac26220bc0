"""Every example is a complete program: it runs as it stands, on the scripted model, and says what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "first_agent.py": ["Hello! This conversation is stored, whatever happens to me."],
    "tools_with_state.py": ["Tea, bread and cheese: 16.5 of 20.", "['tea', 'bread', 'cheese'] 16.5"],
    "survive_a_restart.py": [
        "the first process ended with SIGKILL",
        "Ann has her letter, and the order is on its way.",
        "one run, attempt 2",
        "letters sent to Ann",
    ],
    "durable_flow.py": [
        "the first process ended with SIGKILL",
        "Ann paid 450; tea is packed, milk is packed; Tea in, worries out.",
        "in the ledger: Ann 450",
    ],
    "ask_a_human.py": [
        "client_tool: where_are_you",
        "question: ask_human {'question': 'Window or aisle?', 'options': None}",
        "approval: book {'train': 'night train', 'price': 120.0}",
        "Your seat is booked.",
    ],
    "support_desk.py": [
        "may I refund {'amount': 20}?",
        "writing: {'text': 'You have your 20 back, Ann.', 'case': None}",
        "writing: {'text': 'You have your 20 back, Ann.', 'case': 7}",
        "You have your 20 back, Ann. (case 7)",
        "We open at nine.",
        "with desk again: {'number': 7, 'customer': 'Ann', 'paid': [20]}",
    ],
    "sub_agents.py": [
        "researcher starts",
        "researcher starts",
        "researcher completed: {'fact': 'it pulls', 'sure': True}",
        "researcher completed: {'fact': 'it pulls', 'sure': True}",
        "Tides follow the moon.",
        "3 sessions, 96 tokens",
    ],
    "companions.py": [
        "Eve has noted it.",
        "Eve has both.",
        "eve: I was told: the budget is 100; the budget is 120",
    ],
    "remember_users.py": [
        "ann: Has a nut allergy.",
        "bob: I know nothing about you.",
        "waiter: Is called Ann.",
        "waiter: Has a nut allergy.",
        "forgotten: 2",
    ],
    "keep_time.py": [f"All quiet, round {number}." for number in (1, 2, 3)],
    "work_with_files.py": [
        "may I run 'grep -c print sum.py'?",
        "One line, and it prints.",
        "Changed.",
        "code-1 print(2 + 2)",
        "code-2 print(3 + 3)",
    ],
    "trace_a_conversation.py": [
        "It is out.",
        "invoke_agent writer [suspended]",
        *["chat scripted"] * 2,
        "execute_tool subagent__researcher",
        "invoke_agent researcher",
        *["chat scripted"] * 2,
        *["execute_tool search", "SELECT pages"] * 2,
        "invoke_agent writer",
        "execute_tool publish",
        "chat scripted",
    ],
    "report_writer.py": ["Let me look that up. Tides"],
    "refresh_the_page.py": [
        "the page shows 'The sea ' and is closed",
        "The sea breathes twice a day, and the moon is the one who asks it to.",
        "every number once: True",
    ],
}


def test_every_example_is_known_here() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_from_an_empty_folder_and_then_once_more(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HELIX_")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        said = [line.strip() for line in done.stdout.splitlines()]
        # What runs side by side may be told in either order.
        assert (done.returncode, sorted(said)) == (0, sorted(SAYS[name])), done.stderr


def test_the_example_of_mcp_tools_runs_and_its_catalogue_is_what_its_server_offers(tmp_path: Path) -> None:
    app = EXAMPLES / "mcp_tools" / "app.py"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(app)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        said = ["may I library__borrow {'title': 'The Moon'}?", "Enjoy the book."]
        assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
    helix = Path(sys.executable).with_name("helix")
    subprocess.run([helix, "tools", "sync", str(app), "--check"], cwd=tmp_path, check=True, timeout=60)


def test_the_example_of_skills_reads_what_lies_beside_it(tmp_path: Path) -> None:
    app = EXAMPLES / "skills" / "app.py"
    done = subprocess.run(
        [sys.executable, str(app)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    said = ["skill_loaded {'name': 'refunds'}", "I am sorry. For 700 I have to ask the owner."]
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, said), done.stderr
    assert done.stdout.endswith("Be brief, and friendly. Never promise a date.\n</skill>\n")


def test_the_first_example_is_short() -> None:
    """It is what a newcomer copies; the shorter it stays, the more of them do."""
    code = [line for line in (EXAMPLES / "first_agent.py").read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(code) <= 15


def test_an_example_without_what_it_needs_says_what_to_install(tmp_path: Path) -> None:
    example = str(EXAMPLES / "trace_a_conversation.py")
    program = f"import sys, runpy; sys.modules['opentelemetry.sdk'] = None; runpy.run_path({example!r})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "This example needs OpenTelemetry's SDK: pip install 'helix-agents[tracing]' opentelemetry-sdk"
    ]
