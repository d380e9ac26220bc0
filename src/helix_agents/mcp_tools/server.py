"""An MCP server as agents know it: its address, and the tools that its catalogue names."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.choices import check_seconds
from helix_agents.agent.durations import Deadline, Duration
from helix_agents.agent.headers import Headers, check_header
from helix_agents.agent.names import check_name, check_tool_name
from helix_agents.agent.outcomes import ApprovalPredicate, Effect, UnknownOutcome
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import UserMessage
from helix_agents.mcp_tools.catalogue import Catalogue, Offer, catalogue_of, read_catalogue
from helix_agents.mcp_tools.connections import Address, Connections, connecting
from helix_agents.mcp_tools.credentials import RunHeaders
from helix_agents.mcp_tools.resources import resource_tools
from helix_agents.mcp_tools.tools import ToolSettings, check_distinct, make_tool
from helix_agents.mcp_tools.troubles import CallRefused, TroubleMet
from helix_agents.system import beside_the_caller

LONGEST_NAME = 32
SECONDS_TO_CALL = 120.0
"""How long one call may run by default."""


class MCPToolServer:
    """An MCP server whose tools agents may call. Defining one opens nothing; the first call of a tool does.

    The tools are read from its catalogue, a file that `helix tools sync` takes from the server: every process, today
    and after a deploy, knows the same tools, whether the server answers or not.

    Args:
        name: Prefix of its tools' names, as in `docs__search`.
        url: The address of a server that speaks streamable HTTP.
        command: The program that is the server, with its arguments, if it speaks over standard input and output.
        headers: Sent with every request, or an async function that creates them for each; never stored or logged.
        run_headers: A function, sync or async, that makes the headers of each call from its context, for tools that
            act as the user of the run. They are sent instead of `headers`, which then only serve to take the catalogue.
            Calls whose headers differ never share a connection. `ToolFailed` tells the model why there are none.
        env: Environment variables of the program, in addition to the few that any program needs; it inherits no others.
        cwd: The folder in which the program runs.
        catalogue: The file. Defaults to one named after the server, beside the module that defines it.
        connect_timeout: How long starting and greeting it may take, in seconds.

    Raises:
        DefinitionError: the settings could not work; the message says why and what to do.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        command: Sequence[str] | None = None,
        headers: Headers | None = None,
        run_headers: RunHeaders | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        catalogue: str | Path | None = None,
        connect_timeout: float = 60.0,
    ) -> None:
        self.name = _checked_name(name)
        self._subject = f"MCP server {name!r}"
        check_seconds(self._subject, "connect_timeout", connect_timeout)
        address = _address(self._subject, url, command, headers, env, cwd)
        self._run_headers = _checked_run_headers(self._subject, url, run_headers)
        self.catalogue = beside_the_caller(__name__) / (catalogue or f"{name}.mcp.json")
        self._connections = Connections(name, connecting(name, address), connect_timeout)
        if _collected:
            _collected[-1].append(self)

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    def tools(
        self,
        *names: str,
        exclude: Sequence[str] = (),
        catalogue: Catalogue | None = None,
        require_approval: bool | ApprovalPredicate | None = None,
        effect: Effect | None = None,
        unknown_outcome: UnknownOutcome | None = None,
        timeout: Duration | None = SECONDS_TO_CALL,
        retries: int | None = None,
        deadline: Deadline = "inherit",
        on_deadline: Literal["timeout", "deny"] = "timeout",
        available: AvailabilityPredicate | None = None,
    ) -> tuple[Tool[..., Any], ...]:
        """The tools of its catalogue, or those that are named, all with the same settings; nothing is opened.

        Args:
            names: Which tools, by the server's own names; `*` stands for anything. Defaults to all.
            exclude: Which tools to leave out.
            catalogue: A catalogue other than the file, such as `await server.take_catalogue()` for a first try.
            require_approval: As for `tool`. By default a person is asked if the server says that a tool is destructive.
            effect: As for `tool`. By default `"once"`, unless the server says that a tool only reads, or that repeating
                it changes nothing.
            unknown_outcome: As for `tool`; applies to tools that are `"once"`.
            timeout: How long one call may run, including connecting; None means no limit.
            retries: As for `tool`.
            deadline: As for `tool`; applies to tools that may wait for a person.
            on_deadline: As for `tool`; applies to tools that may wait for a person.
            available: As for `tool`; asked once before each model call, for all these tools.

        Raises:
            DefinitionError: there is no catalogue yet, a name is not in it, or options contradict each other.
        """
        known = catalogue or read_catalogue(self._subject, self.catalogue)
        if known is None and not _collected:
            raise DefinitionError(
                self._subject,
                f"there is no catalogue of its tools at {self.catalogue} yet; take it with `helix tools sync MODULE`, "
                "review it and commit it. To try without one: tools(catalogue=await server.take_catalogue()).",
            )
        settings = ToolSettings(
            require_approval=require_approval,
            effect=effect,
            unknown_outcome=unknown_outcome,
            timeout=timeout,
            retries=retries,
            deadline=deadline,
            on_deadline=on_deadline,
            available=available,
        )
        return self._made(known or Catalogue(tools=()), names, exclude, settings)

    def resource_tools(
        self,
        *,
        require_approval: bool | ApprovalPredicate = False,
        timeout: Duration | None = SECONDS_TO_CALL,
    ) -> tuple[Tool[..., Any], ...]:
        """Two tools with which a model lists and reads the server's resources; nothing is opened.

        They are the same for every server, so they need no catalogue: what a server says about its resources reaches a
        model only as the result of a call.

        Args:
            require_approval: As for `tool`.
            timeout: How long one call may run, including connecting; None means no limit.
        """
        return resource_tools(self.name, self._connections, self._run_headers, require_approval, timeout)

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> tuple[UserMessage, ...]:
        """A prompt of the server, filled in, as messages to start a turn with. It is asked for with `headers`.

        Raises:
            MCPUnavailableError, MCPRefusedError, MCPProtocolError: it cannot be had.
        """
        with _failing_here(self.name):
            prompt = await self._connections.read(lambda session: session.prompt(name, arguments or {}))
            # Loaded with the connection: it needs the protocol's library.
            from helix_agents.mcp_tools.prompts import messages_of

            return messages_of(name, prompt)

    async def take_catalogue(self) -> Catalogue:
        """What the server offers right now; another process, at another time, may see something else.

        Raises:
            MCPUnavailableError, MCPRefusedError, MCPProtocolError: it cannot be asked.
        """
        with _failing_here(self.name):
            try:
                return catalogue_of(await self._connections.read(lambda session: session.list()))
            except msgspec.ValidationError as problem:
                raise TroubleMet("protocol", f"its list of tools cannot be used: {problem}") from problem

    async def close(self) -> None:
        """Release its connection once it is not in use; executors do that when they close."""
        await self._connections.close()

    def _made(
        self, catalogue: Catalogue, names: Sequence[str], exclude: Sequence[str], settings: ToolSettings
    ) -> tuple[Tool[..., Any], ...]:
        if isinstance(exclude, str):
            raise DefinitionError(self._subject, f"exclude={exclude!r} is not a list of names; write exclude=[…].")
        for name in (*names, *exclude):
            self._check_known(catalogue, name)
        chosen = [
            offer
            for offer in catalogue.tools
            if (not names or _is_among(offer, names)) and not _is_among(offer, exclude)
        ]
        check_distinct(self._subject, self.name, chosen)
        return tuple(make_tool(self.name, offer, self._connections, settings, self._run_headers) for offer in chosen)

    def _check_known(self, catalogue: Catalogue, name: str) -> None:
        if not _collected and not any(fnmatchcase(offer.name, name) for offer in catalogue.tools):
            known = ", ".join(offer.name for offer in catalogue.tools) or "none"
            raise DefinitionError(self._subject, f"it has no tool {name!r}; it has: {known}.")


_collected: list[list[MCPToolServer]] = []


@contextmanager
def collecting() -> Generator[list[MCPToolServer]]:
    """The servers that are defined in the block. Those without a catalogue have no tools there, instead of failing: a
    module has to be imported before its catalogues can be taken."""
    found: list[MCPToolServer] = []
    _collected.append(found)
    try:
        yield found
    finally:
        _collected.remove(found)


@contextmanager
def _failing_here(server: str) -> Generator[None]:
    """What goes wrong with a server in the block, as errors for the caller."""
    try:
        yield
    except TroubleMet as met:
        raise met.as_error(server) from met
    except CallRefused as refused:
        raise TroubleMet("refused", refused.message).as_error(server) from refused


def _is_among(offer: Offer, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(offer.name, pattern) for pattern in patterns)


def _checked_name(name: str) -> str:
    check_name("MCP server", name)
    if len(name) > LONGEST_NAME:
        raise DefinitionError(
            f"MCP server {name!r}",
            f"its tools' names start with its name; give it one of at most {LONGEST_NAME} characters.",
        )
    try:
        check_tool_name(f"{name}__x")
    except DefinitionError as problem:
        raise DefinitionError(
            f"MCP server {name!r}",
            f"names that start with {name + '__'!r} belong to built-in tools; give it another name.",
        ) from problem
    return name


def _checked_run_headers(subject: str, url: str | None, given: RunHeaders | None) -> RunHeaders | None:
    if given is None:
        return None
    if url is None:
        raise DefinitionError(subject, "run_headers=… are only for a server with url=…; a program serves all users.")
    if not callable(given):
        raise DefinitionError(
            subject,
            "run_headers=… is a function of the call's context; headers=… are the same for every call.",
        )
    return given


def _address(
    subject: str,
    url: str | None,
    command: Sequence[str] | None,
    headers: Headers | None,
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
) -> Address:
    if (url is None) == (command is None):
        raise DefinitionError(subject, "say where it is: either url=… or command=[…].")
    if url is not None:
        if env is not None or cwd is not None:
            raise DefinitionError(subject, "env=… and cwd=… are only for a server with command=[…].")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            # Not shown: it may contain a secret.
            raise DefinitionError(subject, "its url is not an http or https address; give credentials as headers=….")
        if headers is not None and not callable(headers):
            for name, value in headers.items():
                check_header(subject, name, value)
    if command is not None:
        if headers is not None:
            raise DefinitionError(subject, "headers=… are only for a server with url=…; a command takes env=….")
        words = cast("Sequence[object]", command)
        if isinstance(command, str) or not words or not all(isinstance(word, str) and word for word in words):
            raise DefinitionError(
                subject, f'command={command!r} is not a list of words; write ["program", "argument"].'
            )
        for name, value in (env or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise DefinitionError(subject, f"env[{name!r}] is not a string.")
    return Address(
        url=url,
        command=tuple(command or ()),
        headers=headers or {},
        env=dict(env or {}),
        cwd=None if cwd is None else str(cwd),
    )
