"""The tools with which a model works in its workspace; their texts are the same for every provider."""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar, cast

from pydantic import Field

from helix_agents.agent.built_in_tools import built_in_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.tools import Tool
from helix_agents.agent.workspace import Workspace
from helix_agents.domain.errors import WorkspaceFailedError, WorkspaceFileError
from helix_agents.domain.messages import Image
from helix_agents.domain.texts import storable
from helix_agents.domain.workspaces import matches, parts_of
from helix_agents.ports.workspaces import CommandResult, FileInfo, WorkspaceFiles

MOST_ENTRIES = 10_000
"""The most files that a search reads."""

MOST_FOUND = 200
"""The most lines that a search reports."""

LONGEST_LINE = 300
"""How much of a matching line is shown."""

_TRIES = 5
"""How many times an edit tries again when the file changes at the same time."""

_OUTPUT_BYTES = 4
"""Output is limited in bytes and shown in characters; one character takes up to this many bytes."""

_PICTURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"\xff\xd8\xff"), "jpeg"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "webp"),
)

P = ParamSpec("P")
R = TypeVar("R", bound=str | Image)


def workspace_tools(workspace: Workspace) -> tuple[Tool[..., Any], ...]:
    """The tools for what a workspace allows."""
    tools: list[Tool[..., Any]] = []
    if "fs" in workspace.capabilities:
        tools += [*_reading_tools(workspace), *_changing_tools(workspace)]
    if "shell" in workspace.capabilities:
        tools.append(_shell_tool(workspace))
    return tuple(tools)


def tells_model(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Tells the model what the provider refused, because the model can do something about it."""

    @wraps(function)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            told = await function(*args, **kwargs)
            return cast("R", storable(told)) if isinstance(told, str) else told
        except (WorkspaceFileError, WorkspaceFailedError) as problem:
            raise ToolFailed(storable(str(problem))) from problem

    return telling


def _reading_tools(workspace: Workspace) -> Sequence[Tool[..., Any]]:
    most_bytes, most_shown = workspace.most_file_bytes, workspace.most_shown

    @tells_model
    async def read_file(
        ctx: ToolContext[Any, Any],
        path: str,
        start_line: Annotated[int, Field(ge=1)] = 1,
        end_line: Annotated[int, Field(ge=1)] | None = None,
    ) -> str | Image:
        """Read a text file of your workspace, or some lines of it, or look at an image in it.

        Args:
            path: The file's path in the workspace, such as notes/plan.md.
            start_line: The first line to read, counted from 1.
            end_line: The last line to read; the file's last if left out.
        """
        if end_line is not None and end_line < start_line:
            raise ToolFailed(f"Line {end_line} is before line {start_line}.")
        files = await ctx.link.open_files(changes=False)
        raw = await files.read(path, most_bytes=most_bytes)
        picture = _picture(path, raw)
        if picture is not None:
            return picture
        text = _text(path, raw)
        return _lines_of(path, text, start_line, end_line, most_shown)

    @tells_model
    async def ls(ctx: ToolContext[Any, Any], path: str = "") -> str:
        """List what is in a folder of your workspace.

        Args:
            path: The folder's path; the workspace itself if left out.
        """
        files = await ctx.link.open_files(changes=False)
        found = await files.list(path, most=MOST_ENTRIES)
        return _cut([_line_for(each) for each in found], most_shown) if found else "The folder is empty."

    @tells_model
    async def glob(ctx: ToolContext[Any, Any], pattern: Annotated[str, Field(max_length=500)]) -> str:
        """Find files of your workspace by their paths.

        Args:
            pattern: What the path looks like, such as **/*.py: * stands for a part of a name, ** for any folders.
        """
        files = await ctx.link.open_files(changes=False)
        found, sentence = await _all_files(files, "")
        fitting = [_line_for(each) for each in found if matches(each.path, pattern)]
        return _cut(fitting, most_shown, sentence) if fitting else f"No file name matches {pattern!r}.{sentence}"

    @tells_model
    async def search(
        ctx: ToolContext[Any, Any],
        text: Annotated[str, Field(min_length=1, max_length=1_000)],
        path: str = "",
        pattern: Annotated[str, Field(max_length=500)] = "**",
        ignore_case: bool = False,
    ) -> str:
        """Find lines with a text in the files of your workspace.

        Args:
            text: What the line has to contain: exactly this text, not a pattern.
            path: The file or folder to look in; everything if left out.
            pattern: Which files to look at, by paths such as **/*.md; all if left out.
            ignore_case: Whether upper and lower case count as the same.
        """
        files = await ctx.link.open_files(changes=False)
        found, sentence = await _all_files(files, path)
        wanted = text.casefold() if ignore_case else text
        lines: list[str] = []
        for each in found:
            if each.size > most_bytes or not (each.path == "/".join(parts_of(path)) or matches(each.path, pattern)):
                continue
            content = await _content_of(files, each, most_bytes)
            for number, line in enumerate(content.splitlines(), 1):
                if wanted in (line.casefold() if ignore_case else line):
                    lines.append(f"{each.path}:{number}: {line[:LONGEST_LINE]}")
                    if len(lines) == MOST_FOUND:
                        return _cut(
                            lines, most_shown, f"\n[These are the first {MOST_FOUND} lines; there may be more.]"
                        )
        return _cut(lines, most_shown, sentence) if lines else f"No line contains {text!r}.{sentence}"

    return [
        built_in_tool("workspace_read_file", read_file),
        built_in_tool("workspace_ls", ls),
        built_in_tool("workspace_glob", glob),
        built_in_tool("workspace_search", search),
    ]


def _changing_tools(workspace: Workspace) -> Sequence[Tool[..., Any]]:
    most_bytes = workspace.most_file_bytes

    def checked(path: str, content: str) -> bytes:
        raw = content.encode(errors="backslashreplace")
        if len(raw) > most_bytes:
            raise ToolFailed(
                f"{path!r} would have {len(raw):,} bytes; at most {most_bytes:,} are allowed. Use several files."
            )
        return raw

    @tells_model
    async def write_file(ctx: ToolContext[Any, Any], path: str, content: str) -> str:
        """Write a text file in your workspace, with the folders it is in. What the file contained before is replaced.

        Args:
            path: The file's path in the workspace, such as notes/plan.md.
            content: All that the file should contain.
        """
        raw = checked(path, content)
        files = await ctx.link.open_files(changes=True)
        await files.write(path, raw)
        return f"Wrote {len(raw):,} bytes to {path!r}."

    @tells_model
    async def edit(
        ctx: ToolContext[Any, Any],
        path: str,
        old_text: Annotated[str, Field(min_length=1)],
        new_text: str,
        replace_all: bool = False,
    ) -> str:
        """Replace a text in a file of your workspace with another one.

        Args:
            path: The file's path in the workspace.
            old_text: The text exactly as it is in the file, with every space and line break; enough to occur only once.
            new_text: The text to put in its place.
            replace_all: Replace every occurrence, however many there are.
        """
        files = await ctx.link.open_files(changes=True)
        for _ in range(_TRIES):
            before = await files.read(path, most_bytes=most_bytes)
            text = _text(path, before)
            count = text.count(old_text)
            if count == 0:
                raise ToolFailed(f"The text to replace is not in {path!r}; nothing was changed. Read the file again.")
            if count > 1 and not replace_all:
                raise ToolFailed(
                    f"The text to replace is in {path!r} {count} times; nothing was changed. Give more of the text "
                    "around the place that you mean, or set replace_all."
                )
            if await files.write(path, checked(path, text.replace(old_text, new_text)), instead_of=before):
                return f"Replaced {count} {'place' if count == 1 else 'places'} in {path!r}."
        raise ToolFailed(f"Others keep changing {path!r}; nothing was changed.")

    @tells_model
    async def delete(ctx: ToolContext[Any, Any], path: str, with_contents: bool = False) -> str:
        """Delete a file or a folder of your workspace.

        Args:
            path: The path of the file or folder.
            with_contents: Delete a folder even if it is not empty.
        """
        files = await ctx.link.open_files(changes=True)
        there = await files.delete(path, with_contents=with_contents)
        return f"Deleted {path!r}." if there else f"There is nothing at {path!r}."

    @tells_model
    async def move(ctx: ToolContext[Any, Any], path: str, target: str) -> str:
        """Move or rename a file or folder of your workspace.

        Args:
            path: Where it is.
            target: Its new path, where nothing may exist yet.
        """
        files = await ctx.link.open_files(changes=True)
        await files.move(path, target)
        return f"Moved {path!r} to {target!r}."

    return [
        built_in_tool("workspace_write_file", write_file),
        # Repeated, it could do its work twice: the new text may contain the old. The model can look.
        built_in_tool("workspace_edit", edit, effect="once", unknown_outcome="fail"),
        built_in_tool("workspace_delete", delete),
        built_in_tool("workspace_move", move),
    ]


def _shell_tool(workspace: Workspace) -> Tool[..., Any]:
    most_shown, longest = workspace.most_shown, workspace.command_seconds

    @tells_model
    async def run(
        ctx: ToolContext[Any, Any],
        command: Annotated[str, Field(min_length=1, max_length=100_000)],
        timeout_seconds: Annotated[float, Field(gt=0)] | None = None,
    ) -> str:
        """Run a command in a shell, in your workspace. It gets no input, and whatever it leaves running ends with it.
        Calls of the same reply run in parallel, so a command is certain to see only files of earlier replies.

        Args:
            command: What to run.
            timeout_seconds: After how many seconds to end the command.
        """
        seconds = longest if timeout_seconds is None else min(timeout_seconds, longest)
        files = await ctx.link.open_files(changes=True)
        ended = await files.run(command, timeout_seconds=seconds, most_bytes=most_shown * _OUTPUT_BYTES)
        return _told_of(ended, seconds, most_shown)

    return built_in_tool(
        "workspace_run", run, effect=workspace.command_effect, require_approval=workspace.approve_commands
    )


def _picture(path: str, raw: bytes) -> Image | None:
    """An image in one of the formats that models read, told by how it begins and not by its name."""
    for begins, kind in _PICTURES:
        if begins.match(raw):
            return Image.of(raw, f"image/{kind}", filename=path.rpartition("/")[2])
    return None


def _text(path: str, raw: bytes) -> str:
    try:
        if b"\0" not in raw:
            return raw.decode()
    except UnicodeDecodeError:
        pass
    raise ToolFailed(f"{path!r} is not a text file: its {len(raw):,} bytes are not UTF-8.")


def _lines_of(path: str, text: str, first: int, last: int | None, most: int) -> str:
    lines = text.splitlines(keepends=True)
    if first > max(len(lines), 1):
        raise ToolFailed(f"{path!r} has {len(lines)} lines; there is no line {first}.")
    chosen = lines[first - 1 : last]
    shown: list[str] = []
    room = most
    for line in chosen:
        if len(line) > room:
            break
        shown.append(line)
        room -= len(line)
    if len(shown) == len(chosen):
        return "".join(shown) or f"[{path!r} is empty.]"
    if not shown:
        return f"{chosen[0][:most]}\n[Line {first} has {len(chosen[0]):,} characters; these are the first {most:,}.]"
    end = first + len(shown) - 1
    whole = "".join(shown).rstrip("\r\n")
    return f"{whole}\n[These are lines {first} to {end} of {len(lines)}; read on with start_line={end + 1}.]"


def _line_for(entry: FileInfo) -> str:
    if entry.kind == "folder":
        return f"{entry.path}/"
    return f"{entry.path} ({f'{entry.size:,} bytes' if entry.kind == 'file' else entry.kind})"


def _cut(lines: Sequence[str], most: int, sentence: str = "") -> str:
    shown: list[str] = []
    room = most
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            return "\n".join((*shown, f"[These are {len(shown)} of {len(lines)}; ask for less.]"))
        shown.append(line)
    return "\n".join(shown) + sentence


async def _all_files(files: WorkspaceFiles, path: str) -> tuple[Sequence[FileInfo], str]:
    """The files in a folder, at any depth, or the file that the path names; and what to say if some were left out."""
    found = await files.list(path, deep=True, most=MOST_ENTRIES)
    sentence = f"\n[Only the first {MOST_ENTRIES:,} entries were looked at.]" if len(found) == MOST_ENTRIES else ""
    return [each for each in found if each.kind == "file"], sentence


async def _content_of(files: WorkspaceFiles, entry: FileInfo, most_bytes: int) -> str:
    """The text of a file; empty if it is not text, or was removed since it was listed."""
    try:
        return _text(entry.path, await files.read(entry.path, most_bytes=most_bytes))
    except (ToolFailed, WorkspaceFileError):
        return ""


def _told_of(ended: CommandResult, seconds: float, most: int) -> str:
    head = ended.output.decode(errors="replace")
    tail = ended.output_end.decode(errors="replace")
    half = most // 2
    if ended.left_out or len(head) + len(tail) > most:
        whole = head + tail
        head, tail = (head, tail) if ended.left_out else (whole, whole)
        sentence = "[The output was long; this part was left out.]"
        output = f"{head[:half]}\n{sentence}\n{tail[-half:]}"
    else:
        output = head + tail
    how = f"Stopped after {seconds:g} seconds, because its time was up." if ended.exit_code is None else ""
    return "\n".join(each for each in (how or f"Exit code {ended.exit_code}.", output.rstrip("\n")) if each)
