"""The names of workspaces, which paths lead into them, and where in a conversation their files belong."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import PurePosixPath

from helix_agents.domain.errors import WorkspaceFileError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.records import encode
from helix_agents.domain.sessions import SessionState

CHANGING_TOOLS = frozenset(
    {
        "workspace_write_file",
        "workspace_edit",
        "workspace_delete",
        "workspace_move",
        "workspace_copy_skill",
        "workspace_run",
    }
)
"""The tools whose results mean that files of the workspace may have changed."""

LONGEST_PATH = 1_000
MOST_LEVELS = 50


def workspace_key(session: SessionState) -> str:
    """The name of a session's workspace: the same whichever process opens it and however often, and different for a
    session of the same id that was created at another time. It is a valid file name, and starts like the session's
    id."""
    return key_of(session.session_id, session.created_at)


def key_of(session_id: SessionId, created_at: int) -> str:
    """Like `workspace_key`, from its parts."""
    readable = re.sub(r"[^a-z0-9]+", "-", session_id.lower()).strip("-")[:40]
    digest = sha256(f"{session_id}\0{created_at}".encode()).hexdigest()[:24]
    return f"{readable}-{digest}" if readable else digest


def parts_of(path: str) -> tuple[str, ...]:
    """The names that make up a path inside a workspace; none for the workspace itself.

    Raises:
        WorkspaceFileError: it leads out of the workspace, or is not a path.
    """
    plain = PurePosixPath(path)
    if plain.is_absolute():
        raise WorkspaceFileError(path, "paths start in the workspace, without a leading slash: write notes/a.txt.")
    if ".." in plain.parts:
        raise WorkspaceFileError(path, "a path may not go up with ..; nothing outside the workspace can be reached.")
    if "\0" in path or len(path) > LONGEST_PATH or len(plain.parts) > MOST_LEVELS:
        raise WorkspaceFileError(
            path[:LONGEST_PATH], "this is not a path: it is too long, or contains a null character."
        )
    return plain.parts


def matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern: `*` and `?` match within a name, `**` matches any folders."""
    names, wanted = path.split("/"), [each for each in pattern.split("/") if each not in ("", ".")]
    # Which prefixes of the pattern match the names so far; a table instead of backtracking, so that no pattern takes
    # long.
    fits = [True, *(all(each == "**" for each in wanted[: count + 1]) for count in range(len(wanted)))]
    for name in names:
        now = [False] * (len(wanted) + 1)
        for place, part in enumerate(wanted, 1):
            if part == "**":
                now[place] = now[place - 1] or fits[place]
            else:
                now[place] = fits[place - 1] and fnmatchcase(name, part)
        fits = now
    return fits[-1]


def place_of(count: int, last: Message | None) -> str:
    """The name of a place in a conversation: after this many messages, with this one the last. A conversation that was
    rewound to before it, and continued differently, has no place of this name."""
    return f"{count}-{sha256(encode(_identity(last))).hexdigest()[:24]}"


def stands(place: str, messages: Sequence[Message]) -> bool:
    """Whether a conversation has passed through a place, and was not rewound to before it since."""
    count = _count_of(place)
    return count <= len(messages) and place == place_of(count, messages[count - 1] if count else None)


def latest_standing(places: Iterable[str], messages: Sequence[Message]) -> str | None:
    """The last of these places that a conversation passed through; None if it passed through none."""
    return max((each for each in places if stands(each, messages)), key=_count_of, default=None)


def may_have_changed(messages: Sequence[Message], since: str | None) -> bool:
    """Whether files may have changed in a conversation after a place, or at all."""
    later = messages[0 if since is None else _count_of(since) :]
    return any(isinstance(each, ToolMessage) and each.tool_name in CHANGING_TOOLS for each in later)


def files_message(text: str) -> UserMessage:
    """What the engine tells a model about its workspace."""
    return UserMessage(content=text, hidden=True, metadata={"helix": "workspace"})


def _count_of(place: str) -> int:
    count = place.partition("-")[0]
    return int(count) if count.isascii() and count.isdigit() else 0


def _identity(message: Message | None) -> list[object]:
    match message:
        case AssistantMessage():
            return ["assistant", message.id, message.text]
        case ToolMessage():
            return ["tool", message.tool_call_id, message.content]
        case UserMessage():
            return ["user", message.id, message.content]
        case None:
            return []
