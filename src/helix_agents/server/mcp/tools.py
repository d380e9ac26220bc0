"""The tools that a client is offered: one for each agent, and four that continue what an agent started."""

from typing import Annotated, Literal

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.records import JSON, Record
from helix_agents.server.bodies import Id, Words
from helix_agents.server.mcp.waiting import Plain

PENDING, ANSWER, CONTINUE, STOP = "session__pending", "session__answer", "session__continue", "session__stop"

Status = Literal["completed", "waiting", "running", "stopped", "failed"]

_SESSION = "The session_id that an earlier call returned."


class Said(Record):
    """The arguments of an agent's tool."""

    message: Annotated[Words, msgspec.Meta(description="What to tell the agent.")]
    session_id: Annotated[
        Id | None,
        msgspec.Meta(description="Continue this conversation; an earlier call returned it. Leave it out to start one."),
    ] = None
    idempotency_key: Annotated[
        Id | None,
        msgspec.Meta(
            description="Your own name for this message. A call that repeats it does not say it twice: it returns what "
            "became of the first."
        ),
    ] = None


class NamedSession(Record):
    """The arguments of tools that only need a session."""

    session_id: Annotated[Id, msgspec.Meta(description=_SESSION)]


class AnyOrOneSession(Record):
    """The arguments of `session__pending`."""

    session_id: Annotated[
        Id | None, msgspec.Meta(description="Only this session. Leave it out for all your sessions.")
    ] = None


class Answered(Record):
    """The arguments of `session__answer`. `approved` decides an approval; `result` or `error` answers anything else."""

    session_id: Annotated[Id, msgspec.Meta(description=_SESSION)]
    tool_call_id: Annotated[
        Id | None, msgspec.Meta(description="The call to answer. Needed only if several calls wait.")
    ] = None
    approved: Annotated[
        bool | None, msgspec.Meta(description="For an approval: what the user decided. Never decide it yourself.")
    ] = None
    reason: Annotated[str | None, msgspec.Meta(description="For an approval: the user's reason.")] = None
    edited_input: Annotated[
        dict[str, JSON] | None,
        msgspec.Meta(description="For an approval: input to run the call with, instead of what was shown."),
    ] = None
    result: Annotated[JSON, msgspec.Meta(description="For a question or a client tool: the answer.")] = None
    error: Annotated[str | None, msgspec.Meta(description="For a question or a client tool: why there is none.")] = None


_PENDING_CALL: Plain = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string"},
        "tool_call_id": {"type": "string"},
        "kind": {"type": "string", "enum": ["approval", "question", "client_tool"]},
        "tool_name": {"type": "string"},
        "input": {},
        "preview": {},
        "reason": {"type": "string"},
        "answer_schema": {"type": "object"},
        "expires_at": {"type": "string", "format": "date-time"},
    },
    "required": ["tool_call_id", "kind", "tool_name"],
}


def definitions(agents: list[AnyAgent]) -> list[Plain]:
    """Every tool that is offered for these agents, in a fixed order."""
    return [*map(_agent_tool, agents), *_COMPANIONS.values()]


def _agent_tool(agent: AnyAgent) -> Plain:
    return {
        "name": agent.name,
        "description": agent.description or f"Talk to the agent {agent.name}.",
        "inputSchema": _input(Said),
        "outputSchema": _outcome(agent),
        "annotations": {"readOnlyHint": False, "openWorldHint": True},
    }


def _input(kind: type[Record]) -> Plain:
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = components[kind.__name__]
    properties = {name: _without_null(each) for name, each in schema["properties"].items()}
    return {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


def _without_null(schema: Plain) -> Plain:
    """A field that may be left out. Models are not told that it may also be null, which is one choice too many."""
    options: list[Plain] = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    whole: Plain = {**schema, **(options[0] if len(options) == 1 else {})}
    # Providers of models know other regular expressions, or none.
    return {key: value for key, value in whole.items() if key not in ("default", "anyOf", "pattern")}


def _outcome(agent: AnyAgent | None) -> Plain:
    """The schema of a turn's outcome; the output of an agent that produces text is the text itself."""
    statuses: list[Status] = ["completed", "waiting", "running", "stopped", "failed"]
    properties: Plain = {
        "session_id": {"type": "string", "description": "Pass it to continue this conversation."},
        "agent": {"type": "string"},
        "status": {"type": "string", "enum": statuses},
        "text": {"type": "string", "description": "What the agent said last."},
        "pending": {"type": "array", "items": _PENDING_CALL, "description": "What waits for an answer."},
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        },
    }
    schema: Plain = {"type": "object", "properties": properties, "required": ["session_id", "agent", "status", "text"]}
    if agent is None:
        properties["output"] = {"description": "What the agent produced, if it produces more than text."}
        return schema
    if agent.output_type is not None:
        output: Plain = dict(agent.output_type.stored_schema)
        # References of a schema start at its root, which is another one here.
        defined = output.pop("$defs", None)
        properties["output"] = output
        schema |= {} if defined is None else {"$defs": defined}
    return schema


def _companion(name: str, description: str, kind: type[Record], outcome: Plain, **hints: bool) -> Plain:
    return {
        "name": name,
        "description": description,
        "inputSchema": _input(kind),
        "outputSchema": outcome,
        "annotations": {"openWorldHint": True, **hints},
    }


_COMPANIONS: dict[str, Plain] = {
    each["name"]: each
    for each in (
        _companion(
            PENDING,
            "List the calls of agents that wait for an answer: approvals, questions, and tools to be run on this side.",
            AnyOrOneSession,
            {
                "type": "object",
                "properties": {
                    "items": {"type": "array", "items": _PENDING_CALL},
                    "has_more": {"type": "boolean"},
                },
                "required": ["items", "has_more"],
            },
            readOnlyHint=True,
        ),
        _companion(
            ANSWER,
            "Answer a call that waits, and let the agent go on. Returns what became of its turn. The decision on an "
            "approval is the user's: ask, and pass on what they said.",
            Answered,
            _outcome(None),
            readOnlyHint=False,
            destructiveHint=True,
        ),
        _companion(
            CONTINUE,
            "Wait for the turn that an agent is in, or continue one that was stopped. Returns what became of it.",
            NamedSession,
            _outcome(None),
            readOnlyHint=False,
            destructiveHint=False,
        ),
        _companion(
            STOP,
            "Stop the turn that an agent is in. What it did is kept; what waits for an answer is given up.",
            NamedSession,
            _outcome(None),
            readOnlyHint=False,
            destructiveHint=True,
            idempotentHint=True,
        ),
    )
}
