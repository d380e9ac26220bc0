"""An agent's output type: the `__finish__` tool that the model submits it with, and how it is stored and read back."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Generic, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic_core import from_json
from typing_extensions import TypeVar

from helix_agents.agent.schemas import (
    REFUSALS,
    SCHEMA_PROBLEMS,
    adapter_for,
    arguments_json,
    is_object,
    json_schema,
    refusal,
    unfit,
)
from helix_agents.domain.errors import DefinitionError, ToolInputError, ToolOutputError
from helix_agents.domain.records import JSON, decode_json, encode
from helix_agents.ports.llm import FINISH_TOOL, ToolSpec

OutputT = TypeVar("OutputT", default=str)

WRAPPED_UNDER = "result"
"""The only argument of `__finish__` when the output is not itself a JSON object."""

_DESCRIPTION = "Hand in the final result. Call this once, when the work is done; it ends the conversation turn."


def fits_output(produced: Any, wanted: Any) -> bool:
    """Whether everything that an agent with the one output type produces is something that one with the other may
    produce: it is the same type, or part of its union. None is text."""
    allowed = _members(wanted)
    return all(each in allowed for each in _members(produced))


def _members(form: Any) -> tuple[Any, ...]:
    if get_origin(form) in (Union, UnionType):
        return tuple(member for each in get_args(form) for member in _members(each))
    return (str if form is None else form,)


class OutputType(Generic[OutputT]):
    """What a run has to produce. Values are stored under their field names."""

    def __init__(self, form: Any, subject: str) -> None:
        try:
            self._adapter: TypeAdapter[OutputT] = adapter_for(form)
            self._parameters = json_schema(self._adapter)
            self._wrapper: type[BaseModel] | None = None
            if not is_object(self._parameters):
                fields: dict[str, Any] = {WRAPPED_UNDER: (form, ...)}
                self._wrapper = create_model("Finish", __config__=ConfigDict(extra="forbid"), **fields)
                self._parameters = json_schema(self._wrapper)
        except SCHEMA_PROBLEMS as problem:
            raise DefinitionError(
                subject, f"output={form!r} is not a type that a model could fill in: {unfit(problem)}"
            ) from problem

    def spec(self, *, strict: bool | None = None) -> ToolSpec:
        """The `__finish__` tool as the model sees it."""
        return ToolSpec(name=FINISH_TOOL, description=_DESCRIPTION, parameters=self._parameters, strict=strict)

    @property
    def stored_schema(self) -> dict[str, JSON]:
        """The JSON schema of the output in the form it is stored."""
        return self._adapter.json_schema(by_alias=False)

    def parse(self, arguments: Mapping[str, JSON] | str) -> JSON:
        """The output in the arguments of `__finish__`, in the form it is stored.

        Raises:
            ToolInputError: the arguments do not fit; the message is a sentence the model can act on.
        """
        try:
            data = arguments_json(arguments)
            if self._wrapper is None:
                return self._stored(self._adapter.validate_json(data))
            return self._stored(getattr(self._wrapper.model_validate_json(data), WRAPPED_UNDER))
        except REFUSALS as problem:
            raise ToolInputError(FINISH_TOOL, refusal(problem)) from problem

    def so_far(self, arguments: str) -> JSON:
        """What can be read of the output in arguments that are not complete yet; None if it is nothing."""
        try:
            given = _read_partly(arguments)
        except ValueError:
            return None
        if self._wrapper is None:
            return given
        return cast("dict[str, JSON]", given).get(WRAPPED_UNDER) if isinstance(given, dict) else None

    def as_written(self, stored: JSON) -> JSON:
        """A stored output under the names that the model uses, as far as its type still accepts it."""
        try:
            return self._adapter.dump_python(self.load(stored), mode="json", by_alias=True, round_trip=True)
        except REFUSALS:
            return stored

    def arguments(self, value: Any) -> dict[str, JSON]:
        """The arguments of `__finish__` with which a program hands in this value.

        Raises:
            ToolOutputError: it is not what the agent has to produce.
        """
        try:
            data = self._adapter.dump_python(self.accept(value), mode="json", by_alias=True, round_trip=True)
            given = data if self._wrapper is None else {WRAPPED_UNDER: data}
            self.parse(given)
        except ToolInputError as problem:
            told = f"its type does not accept what it writes as JSON itself: {problem.problem}"
            raise ToolOutputError(FINISH_TOOL, told) from problem
        except REFUSALS as problem:
            raise ToolOutputError(FINISH_TOOL, refusal(problem)) from problem
        return given

    def accept(self, value: Any) -> OutputT:
        """A value of the type; raises whatever its validators raise for another one."""
        return self._adapter.validate_python(value)

    def check(self, result: Any, tool: str) -> JSON:
        """The output that a `finish_with` tool returned, in the form it is stored.

        Raises:
            ToolOutputError: it is not what the agent has to produce.
        """
        try:
            return self._stored(self._adapter.validate_python(result))
        except REFUSALS as problem:
            raise ToolOutputError(tool, refusal(problem)) from problem

    def load(self, stored: JSON) -> OutputT:
        """A stored output as the original object.

        Raises:
            ToolOutputError: the type has changed since and rejects it.
        """
        try:
            return self._adapter.validate_json(encode(stored), by_alias=False, by_name=True)
        except REFUSALS as problem:
            raise ToolOutputError(FINISH_TOOL, refusal(problem)) from problem

    def _stored(self, value: OutputT) -> JSON:
        """The value as stored. A run must not end with an output that cannot be read back, such as NaN."""
        data = self._adapter.dump_json(value, by_alias=False, round_trip=True)
        self._adapter.validate_json(data, by_alias=False, by_name=True)
        return decode_json(data)


def _read_partly(arguments: str) -> JSON:
    """The JSON that these characters begin, without what is not certain yet."""
    given: JSON = from_json(arguments, allow_partial="trailing-strings", allow_inf_nan=False)
    if arguments[-1:].isdigit() and given == from_json(arguments, allow_partial=True, allow_inf_nan=False):
        # They do not end inside a text, so they end in a number, of which more may come: half of one is another number.
        return from_json(arguments.rstrip("+-.0123456789eE"), allow_partial=True, allow_inf_nan=False)
    return given
