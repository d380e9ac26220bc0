"""Lines of a client that cannot be read as a message: the sender of a request gets an error, not silence."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

import anyio
import mcp_types as types
import msgspec
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

# A text that never ends is one token too: trying again at each of its letters would take for ever.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|$)|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


class Answered:
    """A stream of messages in which unreadable lines have already been answered."""

    def __init__(self, reading: Any, writing: Any) -> None:
        self._reading = reading
        self._writing = writing

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent."""
        return self._reading.last_context

    async def receive(self) -> SessionMessage:
        """The next message."""
        while isinstance(item := await self._reading.receive(), Exception):
            refusal = refusal_of(item)
            if refusal is not None:
                await self._writing.send(SessionMessage(refusal))
        return item

    async def aclose(self) -> None:
        """Stop reading."""
        await self._reading.aclose()

    def __aiter__(self) -> "Answered":
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> "Answered":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


def refusal_of(problem: Exception) -> types.JSONRPCError | None:
    """The answer to a line that could not be read; None if no answer is expected."""
    if not isinstance(problem, ValidationError):
        return None
    first, *others = problem.errors(include_url=False)
    if first["type"] != "json_invalid":
        # A field that is missing is reported for the whole message.
        return _refusal(types.INVALID_REQUEST, "This is not a message of JSON-RPC 2.0.", _object_in((first, *others)))
    line = str(first["input"])
    if not line.strip():
        return None
    why = str(first.get("ctx", {}).get("error", ""))
    told = "is nested too deeply to be read" if "recursion limit" in why else f"is not JSON: {why}"
    return _refusal(types.PARSE_ERROR, f"The message {told}.", first_level(line))


def _object_in(errors: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    for each in errors:
        if isinstance(each["input"], dict):
            return cast("dict[str, Any]", each["input"])
    return {}


def first_level(line: str) -> dict[str, Any]:
    """The plain members of an object, however deep or malformed the others are."""
    found: dict[str, Any] = {}
    depth, name, before = 0, "", ""
    for match in _TOKEN.finditer(line):
        token = match[0]
        if depth == 1 and before == ":" and token not in "{[":
            with suppress(msgspec.DecodeError):
                found[msgspec.json.decode(name)] = msgspec.json.decode(token)
        depth += (token in "{[") - (token in "}]")
        name, before = before, token
    return found


def _refusal(code: int, message: str, said: Mapping[str, Any]) -> types.JSONRPCError | None:
    asks, request_id = "method" in said, said.get("id")
    if asks and "id" not in said:
        return None
    # The id of an answer belongs to a request of this server: an error under that id would be taken for another's.
    known = request_id if asks and isinstance(request_id, str | int) and not isinstance(request_id, bool) else None
    return types.JSONRPCError(jsonrpc="2.0", id=known, error=types.ErrorData(code=code, message=message))
