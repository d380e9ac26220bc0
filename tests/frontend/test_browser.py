"""A React page on an unmodified useChat, in a real browser, while the server is killed underneath it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from helix_agents.testing.service_process import ServiceProcess, tied_to_us
from tests.frontend.conftest import EXAMPLE, Site, command_of_node, free_port, installed, with_node
from tests.frontend.site import LINE

pytestmark = pytest.mark.may_block("a browser is driven from the test's own thread")


@pytest.fixture(scope="module")
def page_script() -> Path:
    """The page of the example, bundled as its own script says."""
    folder, npm = installed("v6"), command_of_node("npm")
    assert npm is not None
    subprocess.run([npm, "run", "--silent", "build"], cwd=folder, env=with_node(), check=True, capture_output=True)
    return folder / "page.js"


@pytest.fixture(scope="module")
def site(page_script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), page_script)
    site.start()
    yield site
    site.stop()


@pytest.fixture
def page(browser, site: Site):
    context = browser.new_context()
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


def say(page, text: str) -> None:
    page.locator("input").fill(text)
    page.locator("input").press("Enter")


def shown(page) -> str:
    return "".join(page.locator(".assistant .text").all_text_contents())


def shows(page, text: str) -> None:
    """Wait until the answer is exactly this."""
    page.wait_for_function(
        "text => [...document.querySelectorAll('.assistant .text')].map(p => p.textContent).join('') === text", arg=text
    )


def test_approve_reload_in_mid_answer_and_lose_the_server(page, site: Site) -> None:
    site.close_gate()
    page.goto(f"{site.url}/?session=b-1")
    say(page, "book")
    page.get_by_role("button", name="Approve").click()
    page.locator(".tool[data-state=output-available]").wait_for()
    page.get_by_text("twice a day").wait_for()

    page.reload()
    page.get_by_text("twice a day").wait_for()
    assert page.locator(".assistant").count() == 1

    site.kill()
    site.start()
    page.reload()
    site.open_gate()
    page.get_by_text("takes its time about it.").wait_for()
    shows(page, "I will book. " + LINE)
    page.locator("main[data-status=ready]").wait_for()
    assert page.locator(".user").count() == page.locator(".assistant").count() == 1
    assert page.locator(".tool").inner_text().startswith('book: output-available "booked Petrel"')

    page.reload()
    page.get_by_text("takes its time about it.").wait_for()
    assert shown(page) == "I will book. " + LINE


def test_two_tabs_show_the_same_answer_once(browser, site: Site) -> None:
    site.close_gate()
    context = browser.new_context()
    first, second = context.new_page(), context.new_page()
    first.goto(f"{site.url}/?session=b-2")
    say(first, "line")
    first.get_by_text("twice a day").wait_for()
    second.goto(f"{site.url}/?session=b-2")
    second.get_by_text("twice a day").wait_for()
    site.open_gate()
    for tab in (first, second):
        tab.get_by_text("takes its time about it.").wait_for()
        assert shown(tab) == LINE
    context.close()


def test_the_example_is_a_chat_with_approvals(browser, page_script: Path, tmp_path: Path) -> None:
    port, process = free_port(), ServiceProcess("example")
    store = f"HELIX_STORE=sqlite:///{tmp_path / 'chat.db'}"
    command = [sys.executable, "-m", "uvicorn", "examples.chat.app:app", "--port", str(port), "--log-level", "warning"]
    process.start(
        ["env", store, f"PYTHONPATH={EXAMPLE.parents[1]}", *tied_to_us(command)],
        lambda: _answers(f"http://127.0.0.1:{port}/healthz"),
    )
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?session=c-1")
        say(page, "Please book a boat")
        page.get_by_text('{"boat":"Petrel"}').wait_for()
        page.get_by_role("button", name="Approve").click()
        page.get_by_text("Anything else?").wait_for()
        assert page.locator(".tool").inner_text().startswith('book: output-available "booked Petrel"')
    finally:
        context.close()
        process.end(signal.SIGTERM)
        process.remove()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.HTTPError:
        return False
