"""A chat page as the AI SDK's `useChat` behaves: it sends its whole history, and reads parts into messages."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import httpx2

from helix_agents.server.chat.ui_messages import read_parts


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events: `data` as JSON, with `id` and `event` where they are given."""
    event: dict[str, Any] = {}
    for line in lines:
        if not line:
            if "data" in event:
                yield event
            event = {}
            continue
        name, _, value = line.partition(": ")
        if name == "data":
            event["data"] = value if value == "[DONE]" else json.loads(value)
        elif name in ("id", "event", "retry"):
            event[name] = value


def parts_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The UI parts of a chat stream, up to its [DONE]."""
    for event in events(lines):
        if event["data"] == "[DONE]":
            return
        yield event["data"]
    raise AssertionError("the stream ended without [DONE]")


class Page:
    """One tab."""

    def __init__(self, client: httpx2.Client, chat_id: str, messages: list[dict[str, Any]] | None = None) -> None:
        self.client = client
        self.chat_id = chat_id
        self.messages = deepcopy(messages or [])
        self.parts: list[dict[str, Any]] = []
        self._count = 0

    @property
    def last(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.last["parts"] if part["type"] == "text")

    def tool(self, name: str) -> dict[str, Any]:
        found = [part for part in self.last["parts"] if part["type"] == f"tool-{name}"]
        assert found, f"no call of {name} in {self.last}"
        return found[-1]

    def say(self, text: str, id: str | None = None) -> "Page":
        self._count += 1
        message = {"id": id or f"{self.chat_id}-m{len(self.messages)}", "role": "user"}
        self.messages.append({**message, "parts": [{"type": "text", "text": text}]})
        return self.post()

    def post(self, **more: Any) -> "Page":
        """Send the page as it is, and read the whole response."""
        with self.posting(**more) as parts:
            self.read(parts)
        return self

    @contextmanager
    def posting(self, **more: Any) -> Iterator[Iterator[dict[str, Any]]]:
        body = {"id": self.chat_id, "messages": self.messages, "trigger": "submit-message", **more}
        if self.last["role"] == "assistant":
            body["messageId"] = self.last["id"]
        with self.client.stream("POST", "/chat", json=body) as response:
            if response.status_code != 200:
                response.read()
            assert response.status_code == 200, response.text
            assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            yield parts_of(response.iter_lines())

    def read(self, parts: Iterator[dict[str, Any]]) -> None:
        """Into the message the page has last, if it is the assistant's, or into a new one."""
        for part in parts:
            self.parts.append(part)
            if self.last["role"] != "assistant":
                assert part["type"] == "start", part
                self.messages.append({"id": "?", "role": "assistant", "parts": []})
            self._read_one(part)

    def _read_one(self, part: dict[str, Any]) -> None:
        # Parts refer to earlier ones by id, so the reading of a message is kept with the page.
        if part["type"] == "start":
            self._open: list[dict[str, Any]] = []
        self._open.append(part)
        base = self._base if part["type"] != "start" else deepcopy(self.last)
        self._base = base
        message = deepcopy(base)
        read_parts(message, self._open)
        self.messages[-1] = message

    def reconnect(self, after_first: Callable[[], None] | None = None, **query: Any) -> int:
        """Ask for the answer in hand, as a page does that was loaded anew; the replay takes the message's place."""
        with self.client.stream("GET", f"/chat/{self.chat_id}/stream", params=query) as response:
            if response.status_code == 200:
                if self.last["role"] == "assistant":
                    self.messages[-1] = {"id": "?", "role": "assistant", "parts": []}
                parts = parts_of(response.iter_lines())
                self.read(iter([next(parts)]))
                if after_first is not None:
                    after_first()
                self.read(parts)
            return response.status_code

    def decide(self, name: str, approved: bool, reason: str | None = None) -> "Page":
        part = self.tool(name)
        part["state"] = "approval-responded"
        part["approval"] = {**part["approval"], "approved": approved, **({"reason": reason} if reason else {})}
        return self

    def give(self, name: str, output: Any) -> "Page":
        part = self.tool(name)
        part.update(state="output-available", output=output)
        return self

    def snapshot(self) -> dict[str, Any]:
        response = self.client.get(f"/sessions/{self.chat_id}/snapshot")
        assert response.status_code == 200, response.text
        return response.json()
