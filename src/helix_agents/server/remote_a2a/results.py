"""What a task has come to, in the terms of a remote session."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.domain.records import JSON
from helix_agents.ports.remote_agents import RemoteStatus
from helix_agents.server.a2a.protocol import A2APart, AgentMessage, AgentTask
from helix_agents.server.remote_a2a.questions import waiting_in

FAILED = "task_failed"
REJECTED = "task_rejected"
CANCELED = "The task was cancelled."


def status_of(task: AgentTask, session_id: str) -> RemoteStatus:
    """The state of a task."""
    match task.status.state:
        case "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING":
            return RemoteStatus(run_status="running")
        case "TASK_STATE_INPUT_REQUIRED" | "TASK_STATE_AUTH_REQUIRED":
            pending = waiting_in(task, session_id)
            return RemoteStatus(run_status="suspended_client_tool" if pending else "running", pending=pending)
        case "TASK_STATE_COMPLETED":
            return RemoteStatus(run_status="completed", output=output_of(task))
        case "TASK_STATE_FAILED":
            return RemoteStatus(run_status="failed", failure_reason=FAILED, error=_said_about(task))
        case "TASK_STATE_REJECTED":
            return RemoteStatus(run_status="failed", failure_reason=REJECTED, error=_said_about(task))
        case "TASK_STATE_CANCELED":
            return RemoteStatus(run_status="interrupted", interrupt_reason=_said_about(task) or CANCELED)


def answered_at_once(message: AgentMessage) -> RemoteStatus:
    """The state of an agent that answered with a message, without a task."""
    return RemoteStatus(run_status="completed", output=_value((message.parts or (),)))


def output_of(task: AgentTask) -> JSON:
    """What a completed task has made: its artifacts, or else what the agent said last."""
    made = [artifact.parts or () for artifact in task.artifacts or ()]
    if any(made):
        return _value(made)
    if task.status.message is not None and task.status.message.parts:
        return _value((task.status.message.parts,))
    said = [each.parts for each in task.history or () if each.role == "ROLE_AGENT" and each.parts]
    return _value(said[-1:])


def words_of(message: AgentMessage | None) -> str:
    """The text of a message."""
    parts = () if message is None else message.parts or ()
    return "\n".join(part.text for part in parts if part.text is not None)


def _value(made: Iterable[Sequence[A2APart]]) -> JSON:
    """Data if there is any, because the words beside it are about it; files in a list, with everything else in order;
    otherwise the words."""
    groups = [[*parts] for parts in made]
    parts = [part for group in groups for part in group]
    if any(_is_file(part) for part in parts):
        return [_plain(part) for part in parts]
    data: list[JSON] = [part.data for part in parts if part.text is None and part.data is not msgspec.UNSET]
    if data:
        return data[0] if len(data) == 1 else data
    texts = ["".join(part.text or "" for part in group) for group in groups]
    return "\n\n".join(text for text in texts if text)


def _is_file(part: A2APart) -> bool:
    return part.text is None and (part.url is not None or part.raw is not None)


def _plain(part: A2APart) -> JSON:
    if part.text is not None:
        return part.text
    if not _is_file(part):
        return None if part.data is msgspec.UNSET else part.data
    told = {"url": part.url, "raw": part.raw, "filename": part.filename, "mediaType": part.media_type}
    return {name: value for name, value in told.items() if value is not None}


def _said_about(task: AgentTask) -> str | None:
    return words_of(task.status.message) or None
