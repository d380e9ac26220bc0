"""All routes in one table, from which both the router and the OpenAPI document are made."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.sessions import SessionSummary
from helix_agents.domain.usage import UsageRollup
from helix_agents.server import executor_routes, schedule_routes, session_routes, turn_routes
from helix_agents.server.a2a import cards, rpc
from helix_agents.server.agui import routes as agui
from helix_agents.server.agui.inputs import RunAgentInput
from helix_agents.server.answers import (
    Caller,
    CheckpointPage,
    Children,
    MessagePage,
    PendingPage,
    QueuedMessages,
    RunOutcome,
    RunPage,
    ScheduleDetail,
    SchedulePage,
    SessionDetail,
    SessionPage,
    Snapshot,
    Started,
    Status,
    Stopped,
    Submitted,
    Tail,
    UIMessagePage,
    UsageDays,
    WorkspaceListing,
)
from helix_agents.server.bodies import (
    NO_PLACE,
    PLAIN_ID,
    BranchBody,
    ChangeQueuedBody,
    ChatStopBody,
    ExecuteBody,
    NoFields,
    ResumeBody,
    RetryBody,
    RewindBody,
    ScheduleBody,
    StartBody,
    StopBody,
    SubmitBody,
)
from helix_agents.server.body_rules import SubmitToSession
from helix_agents.server.calls import LARGEST, Call
from helix_agents.server.chat import routes as chat
from helix_agents.server.chat.inputs import ChatBody
from helix_agents.server.errors import OURS, ErrorShape
from helix_agents.server.mcp import routes as mcp
from helix_agents.server.mcp.errors import MCP_ERRORS
from helix_agents.server.mcp.requests import RPCMessage
from helix_agents.server.openai import routes as responses
from helix_agents.server.openai.answers import (
    OPENAI_ERRORS,
    InputItems,
    ModelList,
    ModelObject,
    ResponseDeleted,
    ResponseObject,
)
from helix_agents.server.openai.inputs import CreateResponse


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the path, the query or the headers."""

    name: str
    schema: dict[str, Any]
    place: Literal["query", "path", "header"] = "query"
    required: bool = False
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One route. `answer` is the record that it returns on success, `stream` for server-sent events, or None for no
    content. A route that `may_stream` returns a record or a stream, whichever the caller asks for. One that
    `may_be_accepted` has nothing to say to some messages."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handler: Callable[[Call], Awaitable[Any]]
    answer: Any
    body: Any = None
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[int, ...] = ()
    may_be_empty: bool = False
    may_stream: bool = False
    may_be_accepted: bool = False
    errors: ErrorShape = OURS
    tag: str = "executor"


STREAM = "stream"

_ID: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": PLAIN_ID}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": LARGEST}
_UI_VERSION = {"type": "string", "enum": ["6", "7"]}

SESSION = Parameter(name="sessionId", schema=_ID, required=True)
SESSION_PATH = Parameter(name="session_id", schema={**_ID, "not": NO_PLACE}, place="path", required=True)
RUN_PATH = Parameter(name="run_id", schema={**_ID, "not": NO_PLACE}, place="path", required=True)
SCHEDULE_PATH = Parameter(
    name="schedule_id", schema={**_ID, "maxLength": 200, "not": NO_PLACE}, place="path", required=True
)
AGENT_PATH = Parameter(
    name="agent", schema={"type": "string"}, place="path", required=True, description="The agent to talk to."
)
LAST_EVENT = Parameter(
    name="Last-Event-ID",
    schema={"type": "string", "pattern": "^[0-9]{0,17}$"},
    place="header",
    description="The id of the last event that the reader received; the stream continues after it, on any instance.",
)
LAST_MCP_EVENT = Parameter(
    name="Last-Event-ID",
    schema={"type": "string"},
    place="header",
    description="The id of the last event that the client received. Without it, there is nothing to read.",
)
RUN = Parameter(name="runId", schema=_ID, description="A run of the session. Default: the current one.")
ONE_RUN = Parameter(name="runId", schema=_ID, description="Only the chunks of this run, from its start.")
WAIT = Parameter(
    name="wait",
    schema={"type": "integer", "minimum": 0, "maximum": turn_routes.LONGEST_WAIT},
    description="For how many seconds to wait for the end. Default: 0.",
)
FROM = Parameter(
    name="fromSequence", schema=_WHOLE, description="Like Last-Event-ID, for a reader that cannot set headers."
)
AFTER = Parameter(
    name="after",
    schema=_WHOLE,
    description="How far the page's snapshot went. An answer that has ended since then is replayed, instead of a 204.",
)
UI_VERSION = Parameter(
    name="uiVersion", schema=_UI_VERSION, description="The major version of the page's AI SDK. Default: 6."
)
FOLDER = Parameter(name="path", schema={"type": "string"}, description="A folder of the workspace. Default: its root.")
AGENT = Parameter(name="agent", schema={"type": "string"}, description="The agent of a new session.")
RESPONSE_PATH = Parameter(name="response_id", schema={"type": "string"}, place="path", required=True)
MODEL_PATH = Parameter(
    name="model", schema={"type": "string"}, place="path", required=True, description="The name of an agent."
)
IDEMPOTENCY_KEY = Parameter(
    name="Idempotency-Key",
    schema=_ID,
    place="header",
    description="Repeating a key returns the response that it started.",
)
PAGING = (
    Parameter(name="offset", schema={"type": "integer", "minimum": 0, "maximum": 2**31}, description="Default: 0."),
    Parameter(
        name="limit", schema={"type": "integer", "minimum": 1, "maximum": 200}, description="1 to 200. Default: 50."
    ),
)
USER = Parameter(name="userId", schema=_ID, description="Only operators can name other users.")

_IN_BODY = (400, 408, 413, 415)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST", path="/start", handler=executor_routes.start, body=StartBody, answer=Started,
        refusals=(*_IN_BODY, 404, 409, 429),
    ),
    Operation(
        method="POST", path="/execute", handler=turn_routes.execute, body=ExecuteBody, answer=Started,
        refusals=(*_IN_BODY, 404, 409, 429),
    ),
    Operation(
        method="POST", path="/resume", handler=executor_routes.resume, body=ResumeBody, answer=Started,
        refusals=(*_IN_BODY, 404, 409, 429),
    ),
    Operation(
        method="POST", path="/retry", handler=executor_routes.retry, body=RetryBody, answer=Started,
        refusals=(*_IN_BODY, 404, 409, 429),
    ),
    Operation(
        method="POST", path="/rewind", handler=executor_routes.rewind, body=RewindBody, answer=SessionSummary,
        refusals=(*_IN_BODY, 404, 409),
    ),
    Operation(
        method="POST", path="/branch", handler=executor_routes.branch, body=BranchBody, answer=SessionSummary,
        refusals=(*_IN_BODY, 404, 409),
    ),
    Operation(
        method="GET", path="/sse", handler=executor_routes.follow, answer=STREAM,
        parameters=(SESSION, ONE_RUN, FROM, LAST_EVENT), refusals=(400, 404, 429),
    ),
    Operation(
        method="GET", path="/result", handler=turn_routes.result, answer=RunOutcome,
        parameters=(SESSION, RUN, WAIT), refusals=(400, 404, 409, 429),
    ),
    Operation(
        method="GET", path="/status", handler=executor_routes.status, answer=Status,
        parameters=(SESSION,), refusals=(400, 404),
    ),
    Operation(
        method="POST", path="/interrupt", handler=executor_routes.interrupt, body=StopBody, answer=Stopped,
        refusals=(*_IN_BODY, 404, 409),
    ),
    Operation(
        method="POST", path="/abort", handler=executor_routes.abort, body=StopBody, answer=Stopped,
        refusals=(*_IN_BODY, 404, 409),
    ),
    Operation(
        method="POST", path="/submit-tool-result", handler=executor_routes.submit_tool_result,
        body=SubmitToSession, answer=Submitted, refusals=(*_IN_BODY, 404, 409),
    ),
    Operation(
        method="GET", path="/workspace", handler=executor_routes.workspace, answer=WorkspaceListing,
        parameters=(SESSION, FOLDER), refusals=(400, 404, 503),
    ),
    Operation(
        method="POST", path="/chat", handler=chat.chat, body=ChatBody, answer=STREAM,
        parameters=(AGENT, UI_VERSION), refusals=(*_IN_BODY, 404, 409, 429), tag="chat",
    ),
    Operation(
        method="GET", path="/chat/{session_id}/stream", handler=chat.reconnect, answer=STREAM, may_be_empty=True,
        parameters=(SESSION_PATH, AFTER, LAST_EVENT, UI_VERSION), refusals=(400, 404, 409, 429), tag="chat",
    ),
    Operation(
        method="POST", path="/chat/{session_id}/submit-tool-result", handler=chat.chat_submit, body=SubmitBody,
        answer=Submitted, parameters=(SESSION_PATH,), refusals=(*_IN_BODY, 404, 409, 429), tag="chat",
    ),
    Operation(
        method="POST", path="/chat/{session_id}/interrupt", handler=chat.chat_interrupt, body=ChatStopBody,
        answer=Stopped, parameters=(SESSION_PATH,), refusals=(*_IN_BODY, 404, 409), tag="chat",
    ),
    Operation(
        method="POST", path="/chat/{session_id}/abort", handler=chat.chat_abort, body=ChatStopBody,
        answer=Stopped, parameters=(SESSION_PATH,), refusals=(*_IN_BODY, 404, 409), tag="chat",
    ),
    Operation(
        method="POST", path="/agui/{agent}", handler=agui.run_agent, body=RunAgentInput, answer=STREAM,
        parameters=(AGENT_PATH,), refusals=(*_IN_BODY, 404, 409, 429), tag="agui",
    ),
    Operation(
        method="POST", path="/a2a/{agent}", handler=rpc.talk, body=rpc.RPCRequest, answer=rpc.RPCAnswer,
        parameters=(AGENT_PATH,), refusals=(404, 408, 413, 415, 429), tag="a2a",
    ),
    Operation(
        method="GET", path="/a2a/{agent}/.well-known/agent-card.json", handler=cards.agent_card, answer=cards.AgentCard,
        parameters=(AGENT_PATH,), refusals=(404,), tag="a2a",
    ),
    Operation(
        method="GET", path="/.well-known/agent-card.json", handler=cards.server_card, answer=cards.AgentCard,
        refusals=(404,), tag="a2a",
    ),
    Operation(
        method="POST", path="/mcp", handler=mcp.talk_to_agents, body=RPCMessage, answer=mcp.RPCAnswer,
        may_stream=True, may_be_accepted=True, refusals=(*_IN_BODY, 404, 409, 429), errors=MCP_ERRORS, tag="mcp",
    ),
    Operation(
        method="POST", path="/mcp/{agent}", handler=mcp.talk_to_agent, body=RPCMessage, answer=mcp.RPCAnswer,
        may_stream=True, may_be_accepted=True, parameters=(AGENT_PATH,), refusals=(*_IN_BODY, 404, 409, 429),
        errors=MCP_ERRORS, tag="mcp",
    ),
    Operation(
        method="GET", path="/mcp", handler=mcp.continue_stream, answer=STREAM, parameters=(LAST_MCP_EVENT,),
        refusals=(400, 404, 405, 429), errors=MCP_ERRORS, tag="mcp",
    ),
    Operation(
        method="GET", path="/mcp/{agent}", handler=mcp.continue_stream_of_agent, answer=STREAM,
        parameters=(AGENT_PATH, LAST_MCP_EVENT), refusals=(400, 404, 405, 429), errors=MCP_ERRORS, tag="mcp",
    ),
    Operation(
        method="POST", path="/v1/responses", handler=responses.create_response, body=CreateResponse,
        answer=ResponseObject, may_stream=True, parameters=(IDEMPOTENCY_KEY,), refusals=(*_IN_BODY, 404, 409, 429),
        errors=OPENAI_ERRORS, tag="openai",
    ),
    Operation(
        method="GET", path="/v1/responses/{response_id}", handler=responses.get_response, answer=ResponseObject,
        may_stream=True,
        parameters=(
            RESPONSE_PATH,
            Parameter(name="stream", schema={"type": "string", "enum": ["true", "false"]}),
            Parameter(
                name="starting_after",
                schema=_WHOLE,
                description="The sequence number of the last event that the reader received.",
            ),
        ),
        refusals=(400, 404, 429), errors=OPENAI_ERRORS, tag="openai",
    ),
    Operation(
        method="POST", path="/v1/responses/{response_id}/cancel", handler=responses.cancel_response,
        answer=ResponseObject, parameters=(RESPONSE_PATH,), refusals=(400, 404, 409), errors=OPENAI_ERRORS,
        tag="openai",
    ),
    Operation(
        method="DELETE", path="/v1/responses/{response_id}", handler=responses.delete_response, answer=ResponseDeleted,
        parameters=(RESPONSE_PATH,), refusals=(400, 404, 409), errors=OPENAI_ERRORS, tag="openai",
    ),
    Operation(
        method="GET", path="/v1/responses/{response_id}/input_items", handler=responses.list_input_items,
        answer=InputItems,
        parameters=(
            RESPONSE_PATH,
            Parameter(name="order", schema={"type": "string", "enum": ["asc", "desc"]}, description="Default: desc."),
            Parameter(
                name="limit",
                schema={"type": "integer", "minimum": 1, "maximum": responses.MOST_ITEMS},
                description="1 to 100. Default: 20.",
            ),
            Parameter(
                name="after", schema={"type": "string"}, description="The id of the last item of the previous page."
            ),
        ),
        refusals=(400, 404), errors=OPENAI_ERRORS, tag="openai",
    ),
    Operation(
        method="GET", path="/v1/models", handler=responses.list_models, answer=ModelList, errors=OPENAI_ERRORS,
        tag="openai",
    ),
    Operation(
        method="GET", path="/v1/models/{model}", handler=responses.get_model, answer=ModelObject,
        parameters=(MODEL_PATH,), refusals=(404,), errors=OPENAI_ERRORS, tag="openai",
    ),
    Operation(
        method="GET", path="/sessions", handler=session_routes.list_sessions, answer=SessionPage,
        parameters=(
            *PAGING,
            USER,
            Parameter(
                name="status",
                schema={"type": "string", "enum": ["active", "completed", "failed", "interrupted", "paused"]},
            ),
            Parameter(name="agentType", schema={"type": "string"}),
            Parameter(name="tag", schema={"type": "string"}),
        ),
        refusals=(400,), tag="sessions",
    ),
    Operation(
        method="GET", path="/pending", handler=session_routes.list_pending, answer=PendingPage,
        parameters=(
            *PAGING,
            USER,
            Parameter(name="toolName", schema={"type": "string"}),
            Parameter(name="kind", schema={"type": "string", "enum": ["client_tool", "approval", "question"]}),
            Parameter(
                name="order", schema={"type": "string", "enum": ["newest", "oldest"]}, description="Default: newest."
            ),
        ),
        refusals=(400,), tag="sessions",
    ),
    Operation(
        method="GET", path="/usage", handler=session_routes.get_usage_by_day, answer=UsageDays,
        parameters=(
            Parameter(
                name="days",
                schema={"type": "integer", "minimum": 1, "maximum": 366},
                description="1 to 366. Default: 30.",
            ),
            USER,
            Parameter(name="agentType", schema={"type": "string"}),
            Parameter(name="sessionId", schema=_ID, description="Only this session."),
            Parameter(name="runId", schema=_ID, description="Only this run of the session."),
        ),
        refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/caller", handler=session_routes.get_caller, answer=Caller, tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}", handler=session_routes.get_session, answer=SessionDetail,
        parameters=(SESSION_PATH,), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="DELETE", path="/sessions/{session_id}", handler=session_routes.delete_session, answer=None,
        may_be_empty=True, parameters=(SESSION_PATH,), refusals=(400, 404, 409), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/snapshot", handler=session_routes.get_snapshot, answer=Snapshot,
        parameters=(SESSION_PATH, *PAGING), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/messages", handler=session_routes.get_messages, answer=MessagePage,
        parameters=(SESSION_PATH, *PAGING), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/ui-messages", handler=session_routes.get_ui_messages,
        answer=UIMessagePage, parameters=(SESSION_PATH, *PAGING), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/runs", handler=session_routes.get_runs, answer=RunPage,
        parameters=(SESSION_PATH, *PAGING), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/queue", handler=session_routes.get_queued, answer=QueuedMessages,
        parameters=(SESSION_PATH,), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="POST", path="/sessions/{session_id}/queue/{run_id}", handler=session_routes.change_queued,
        body=ChangeQueuedBody, answer=QueuedTurn, parameters=(SESSION_PATH, RUN_PATH), refusals=(*_IN_BODY, 404),
        tag="sessions",
    ),
    Operation(
        method="DELETE", path="/sessions/{session_id}/queue/{run_id}", handler=session_routes.drop_queued, answer=None,
        may_be_empty=True, parameters=(SESSION_PATH, RUN_PATH), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/tail", handler=session_routes.get_tail, answer=Tail,
        parameters=(SESSION_PATH,), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/checkpoints", handler=session_routes.get_checkpoints,
        answer=CheckpointPage, parameters=(SESSION_PATH, *PAGING), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/children", handler=session_routes.get_children, answer=Children,
        parameters=(SESSION_PATH,), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/sessions/{session_id}/usage", handler=session_routes.get_usage, answer=UsageRollup,
        parameters=(SESSION_PATH,), refusals=(400, 404), tag="sessions",
    ),
    Operation(
        method="GET", path="/schedules", handler=schedule_routes.list_schedules, answer=SchedulePage,
        parameters=(*PAGING, USER), refusals=(400,), tag="schedules",
    ),
    Operation(
        method="GET", path="/schedules/{schedule_id}", handler=schedule_routes.get_schedule, answer=ScheduleDetail,
        parameters=(SCHEDULE_PATH,), refusals=(400, 404), tag="schedules",
    ),
    Operation(
        method="PUT", path="/schedules/{schedule_id}", handler=schedule_routes.set_schedule, body=ScheduleBody,
        answer=ScheduleDetail, parameters=(SCHEDULE_PATH,), refusals=(*_IN_BODY, 404, 409, 429), tag="schedules",
    ),
    Operation(
        method="POST", path="/schedules/{schedule_id}/pause", handler=schedule_routes.pause_schedule, body=NoFields,
        answer=ScheduleDetail, parameters=(SCHEDULE_PATH,), refusals=(*_IN_BODY, 404), tag="schedules",
    ),
    Operation(
        method="POST", path="/schedules/{schedule_id}/resume", handler=schedule_routes.resume_schedule, body=NoFields,
        answer=ScheduleDetail, parameters=(SCHEDULE_PATH,), refusals=(*_IN_BODY, 404), tag="schedules",
    ),
    Operation(
        method="DELETE", path="/schedules/{schedule_id}", handler=schedule_routes.delete_schedule, answer=None,
        may_be_empty=True, parameters=(SCHEDULE_PATH,), refusals=(400, 404), tag="schedules",
    ),
)  # fmt: skip
