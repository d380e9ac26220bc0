"""Somebody else's agent: a server made of the official A2A library, whose agent does what it is told."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from a2a.helpers import (
    get_data_parts,
    get_message_text,
    new_data_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
    new_url_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    ListTasksRequest,
    ListTasksResponse,
    Part,
    Task,
)
from a2a.utils.errors import UnsupportedOperationError
from starlette.applications import Starlette

from tests.server.live import LiveServer

CARD = "/.well-known/agent-card.json"
STORY = "Once upon a time. "
CHAPTERS = 20


class Errands(AgentExecutor):
    """Does what the first message of a task says. A task at `hold` goes on when `going` is set."""

    def __init__(self, journal: Callable[[str], None]) -> None:
        self.going = asyncio.Event()
        self.gate = os.environ.get("HELIX_TEST_GATE")
        self.note = journal

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None
        if get_message_text(message) == "chat":
            await event_queue.enqueue_event(new_text_message("Only words.", context_id=context.context_id))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            self.note(get_message_text(message))
            await event_queue.enqueue_event(task)
        order = get_message_text(task.history[0])
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        answers = [self._answer(each) for each in [*task.history[1:]] if each.role == 1]
        if context.current_task is not None:
            self.note(f"answer: {self._answer(message)}")
            answers = [*answers, self._answer(message)] if message not in task.history else answers
        await updater.start_work()
        await self._do(order, updater, answers)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task
        assert task is not None
        if get_message_text(task.history[0]) == "stubborn":
            raise UnsupportedOperationError
        self.note("cancelled")
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()

    @staticmethod
    def _answer(message: Any) -> Any:
        data = get_data_parts(message.parts)
        return data[0] if data else get_message_text(message)

    async def _do(self, order: str, updater: TaskUpdater, answers: list[Any]) -> None:
        about = _ORDERS.get(order)
        if about is not None:
            await about(updater)
        elif order.startswith("ask"):
            await self._ask(order, updater, answers)
        elif order == "sign in" and not answers:
            await updater.requires_auth(_said(updater, "Sign in at https://example.com/in, then say so."))
        elif order == "story":
            await self._tell(updater)
        elif order in ("hold", "stubborn"):
            await updater.add_artifact([new_text_part("Wait. ")], artifact_id="a")
            await self.going.wait()
            await updater.complete()
        else:
            await updater.add_artifact([new_text_part(f"You said: {order}"), new_text_part(".")], artifact_id="a")
            await updater.complete()

    async def _ask(self, order: str, updater: TaskUpdater, answers: list[Any]) -> None:
        questions = order.removeprefix("ask ").split(" and ")
        if len(answers) < len(questions):
            await updater.add_artifact(
                [new_text_part(f"About {questions[len(answers)]}. ")], artifact_id=f"q{len(answers)}"
            )
            await updater.requires_input(_said(updater, f"Which {questions[len(answers)]}?"))
            return
        await updater.add_artifact([new_text_part(f"So it is {answers}.")], artifact_id="end")
        await updater.complete()

    async def _tell(self, updater: TaskUpdater) -> None:
        for chapter in range(CHAPTERS):
            await updater.add_artifact([new_text_part(f"{chapter}: {STORY}")], artifact_id="story", append=chapter > 0)
            if chapter == CHAPTERS // 2:
                while self.gate and await asyncio.to_thread(Path(self.gate).exists):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await updater.complete()


async def _fail(updater: TaskUpdater) -> None:
    await updater.failed(_said(updater, "The boat sank."))


async def _reject(updater: TaskUpdater) -> None:
    await updater.reject(_said(updater, "I do not sail."))


async def _note(updater: TaskUpdater) -> None:
    await updater.complete(_said(updater, "Done, as I said."))


async def _data(updater: TaskUpdater) -> None:
    await updater.add_artifact([new_text_part("Here it is: "), new_data_part({"title": "Tides", "pages": 2})])
    await updater.complete()


async def _json(updater: TaskUpdater) -> None:
    await updater.add_artifact([new_text_part('{"title": "Tides", "pages": 2}')])
    await updater.complete()


async def _file(updater: TaskUpdater) -> None:
    await updater.add_artifact([new_text_part("A map."), new_url_part("https://example.com/map.png", "image/png")])
    await updater.complete()


async def _rewrite(updater: TaskUpdater) -> None:
    """Changes its mind more often than is followed at once."""
    for place in range(12):
        await updater.add_artifact([new_text_part(f"Version {place}. ")], artifact_id="a")
        await updater.add_artifact([new_text_part("More. ")], artifact_id="a", append=True)
    await updater.complete()


async def _weave(updater: TaskUpdater) -> None:
    for place in range(12):
        for name in "ab":
            await updater.add_artifact([new_text_part(f"{name}{place} ")], artifact_id=name, append=place > 0)
    await updater.complete()


_ORDERS: dict[str, Callable[[TaskUpdater], Awaitable[None]]] = {
    "fail": _fail,
    "reject": _reject,
    "note": _note,
    "data": _data,
    "json": _json,
    "file": _file,
    "rewrite": _rewrite,
    "weave": _weave,
}


def _said(updater: TaskUpdater, text: str) -> Any:
    return updater.new_agent_message([Part(text=text)])


class FileTaskStore(TaskStore):
    """Tasks as files, so that another process finds them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = InMemoryTaskStore()

    async def load(self) -> None:
        for file in sorted(self._folder.glob("*.task")):
            await self._kept.save(Task.FromString(file.read_bytes()), ServerCallContext())

    async def save(self, task: Task, context: ServerCallContext) -> None:
        file = self._folder / f"{task.id}.new"
        file.write_bytes(task.SerializeToString())
        file.replace(file.with_suffix(".task"))
        await self._kept.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        return await self._kept.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        return await self._kept.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        await self._kept.delete(task_id, context)


def card(url: str, *, streaming: bool = True) -> AgentCard:
    return AgentCard(
        name="errands",
        description="Runs errands.",
        version="3",
        supported_interfaces=[
            AgentInterface(url=f"{url}/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
            AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"),
        ],
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="errands", name="errands", description="Runs errands.", tags=["errands"])],
    )


class Foreign:
    """An ASGI application around the library's own handler. It learns its address when it is served."""

    def __init__(self, *, streaming: bool = True, store: TaskStore | None = None, journal: Any = None) -> None:
        self.journal: list[str] = []
        self.errands = Errands(journal or self.journal.append)
        self._streaming = streaming
        self._store = store or InMemoryTaskStore()
        self._app: Starlette | None = None
        self.asked: list[str] = []

    def serve_at(self, url: str) -> None:
        about = card(url, streaming=self._streaming)
        handler = DefaultRequestHandler(self.errands, self._store, about)
        self._app = Starlette(routes=[*create_agent_card_routes(about), *create_jsonrpc_routes(handler, "/rpc")])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._app is not None
        if scope["type"] == "http":
            self.asked.append(scope["path"])
        await self._app(scope, receive, send)


@contextmanager
def serving(app: Foreign) -> Iterator[LiveServer]:
    """The application, live."""
    live = LiveServer(app)
    app.serve_at(live.url)
    with live:
        yield live


def main(port: int, folder: Path) -> None:
    """Serve in a process of its own, with tasks and journal in a folder."""

    def note(line: str) -> None:
        with (folder / "journal").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    store = FileTaskStore(folder)
    asyncio.run(store.load())
    app = Foreign(store=store, journal=note)
    app.serve_at(f"http://127.0.0.1:{port}")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", ws="none")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
