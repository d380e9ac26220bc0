"""Calls that wait for an answer: as forms for clients that show forms to a person, and as data for all others."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, cast

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import find_tool
from helix_agents.agent.schemas import json_schema
from helix_agents.domain.pending import UNKNOWN_OUTCOME, PendingCall
from helix_agents.domain.records import JSON, encode
from helix_agents.server.bodies import ApprovalResponse, SubmitBody, ToolResult
from helix_agents.server.calls import Call
from helix_agents.server.errors import invalid
from helix_agents.server.wire import as_text, json_in

Plain: TypeAlias = dict[str, Any]
Action: TypeAlias = Literal["accept", "decline", "cancel"]

ANSWER = "answer"
"""The only field of a form whose answer is not itself an object."""

# What the protocol allows in a field of a form.
_FIELD_KEYS = frozenset(
    "type title description minLength maxLength format minimum maximum enum default".split()  # noqa: SIM905
)
_FORMATS = frozenset(("email", "uri", "date", "date-time"))
_PRIMITIVE = frozenset(("string", "number", "integer", "boolean"))


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A call that waits, and the schema of its answer if the tool declares one."""

    row: PendingCall
    schema: dict[str, JSON] | None = None

    @property
    def is_approval(self) -> bool:
        return self.row.approval_id is not None

    def shown(self) -> Plain:
        """The call as data."""
        row = self.row
        told: Plain = {
            "tool_call_id": row.tool_call_id,
            "kind": row.kind,
            "tool_name": row.tool_name,
            "input": row.input,
            "preview": row.preview,
            "reason": row.reason,
            "answer_schema": None if self.is_approval else self.schema,
            "expires_at": None if row.deadline is None else _time(row.deadline),
        }
        return {name: value for name, value in told.items() if value is not None}

    def question(self) -> str:
        """What a person is asked."""
        row = self.row
        given = as_text(row.input)
        if self.is_approval:
            asked = f"May {row.tool_name} run with {given}?"
            if row.reason == UNKNOWN_OUTCOME:
                asked = (
                    f"{row.tool_name} was started with {given}, and it is not known whether it took effect. "
                    "May it run again?"
                )
        else:
            match row.input:
                case {"question": str() as question} if row.kind == "question":
                    asked = question
                case _:
                    asked = f"{row.tool_name} has to be done at your side, with {given}. What is the result?"
        return asked if row.preview is None else f"{asked}\n\n{as_text(row.preview)}"

    def form(self) -> Plain:
        """The fields that a person fills in."""
        if self.is_approval:
            return {
                "type": "object",
                "properties": {
                    "approved": {"type": "boolean", "title": "Approve", "description": "Whether the call may run."},
                    "reason": {"type": "string", "title": "Reason", "description": "What the agent is told about it."},
                    "edited_input": {
                        "type": "string",
                        "title": "Other input",
                        "description": "JSON to run the call with instead. Leave it empty to run it as shown.",
                    },
                },
                "required": ["approved"],
            }
        if self._fields is not None:
            schema = cast("Plain", self.schema)
            return {"type": "object", "properties": self._fields, "required": list(schema.get("required") or ())}
        return {"type": "object", "properties": {ANSWER: self._field()}, "required": [ANSWER]}

    def answer(self, action: Action, content: Plain) -> SubmitBody | None:
        """The answer that a person gave with the form; None if they closed it without deciding.

        Raises:
            RefusedError: the form was not filled in as it asks.
        """
        row = self.row
        if action == "cancel":
            return None
        if row.approval_id is not None:
            approved = content.get("approved") if action == "accept" else False
            if not isinstance(approved, bool):
                raise invalid("The form needs approved: true or false.")
            reason, edited = content.get("reason"), content.get("edited_input")
            return ApprovalResponse(
                tool_call_id=row.tool_call_id,
                approval_id=row.approval_id,
                approved=approved,
                reason=reason if isinstance(reason, str) and reason else None,
                edited_input=_object_in(edited) if approved and isinstance(edited, str) and edited.strip() else None,
            )
        if action == "decline":
            return ToolResult(tool_call_id=row.tool_call_id, error="The person declined to answer.")
        if self._fields is not None:
            given: JSON = {name: value for name, value in content.items() if value is not None}
        elif content.get(ANSWER) is None:
            raise invalid("The form needs an answer.")
        else:
            given = self._read(content[ANSWER])
        return ToolResult(tool_call_id=row.tool_call_id, result=given)

    @property
    def _options(self) -> list[JSON]:
        match self.row.input:
            case {"options": [*options]} if self.row.kind == "question":
                return options
            case _:
                return []

    @property
    def _fields(self) -> Plain | None:
        """The fields of an answer that is a flat object; None for any other answer."""
        schema: Plain = self.schema or {}
        properties = cast("dict[str, Plain]", schema.get("properties") or {})
        if self._options or schema.get("type") != "object" or not properties:
            return None
        fields = {name: _field(each) for name, each in properties.items()}
        return None if None in fields.values() else fields

    def _field(self) -> Plain:
        if self._options:
            return {"type": "string", "enum": [as_text(option) for option in self._options]}
        field = {"type": "string"} if self.schema is None else _field(self.schema)
        if field is not None:
            return field
        return {"type": "string", "description": f"JSON that fits this schema: {encode(self.schema).decode()}"}

    def _read(self, answer: Any) -> JSON:
        for option in self._options:
            if as_text(option) == answer:
                return option
        if self._options or self.schema is None or _field(self.schema) is not None:
            return answer
        try:
            return json_in(answer if isinstance(answer, str) else "")
        except ValueError:
            raise invalid("The answer has to be JSON that fits the schema in the form.") from None


async def waiting_in(call: Call, rows: tuple[PendingCall, ...]) -> list[Waiting]:
    """Waiting calls with the schemas of their answers, as far as the tools are known here."""
    agents: dict[str, tuple[AnyAgent, ...]] = {}
    for session_id in {row.session_id for row in rows}:
        session = await call.executor.sessions.find(session_id)
        agents[session_id] = () if session is None else call.executor.agents.speakers_of(session.agent_type)
    found: list[Waiting] = []
    for row in rows:
        tool = find_tool(agents[row.session_id], row.tool_name)
        output = None if tool is None or tool.output is None or row.approval_id is not None else tool.output
        found.append(Waiting(row=row, schema=None if output is None else json_schema(output)))
    return found


def _field(schema: Plain) -> Plain | None:
    """A schema as a field of a form; None if the protocol has no such field."""
    if schema.get("type") not in _PRIMITIVE or ("enum" in schema and schema["type"] != "string"):
        return None
    kept = {key: value for key, value in schema.items() if key in _FIELD_KEYS and value is not None}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    return kept


def _object_in(text: str) -> dict[str, JSON]:
    with suppress(ValueError):
        value = json_in(text)
        if isinstance(value, dict):
            return cast("dict[str, JSON]", value)
    raise invalid("The other input has to be a JSON object.")


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
