"""The type of an agent's state, a pydantic model or a dataclass, and how its values are turned into JSON and back."""

import copy
import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, cast, get_origin

from pydantic import BaseModel, RootModel, TypeAdapter
from pydantic.errors import PydanticUserError
from typing_extensions import TypeVar

from helix_agents.agent.merging import Merge, merges_of
from helix_agents.agent.schemas import REFUSALS, SCHEMA_PROBLEMS, refusal, unfit
from helix_agents.domain.errors import DefinitionError, InvalidStateError
from helix_agents.domain.records import JSON, decode_json, encode


class NoState(BaseModel):
    """The state of an agent that declares none: it has no fields."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"this agent has no state to set {name!r} on; define it with Agent(state=YourModel)")


StateT = TypeVar("StateT", default=Any)


class StateType(Generic[StateT]):
    """One state type. Values are stored under their field names, whatever aliases the type has for other uses."""

    def __init__(self, python_type: type[StateT]) -> None:
        self.python_type = python_type
        self._adapter: TypeAdapter[StateT] = TypeAdapter(python_type)
        self._is_model = issubclass(python_type, BaseModel)
        config: Mapping[str, Any] = getattr(python_type, "model_config", None) or getattr(
            python_type, "__pydantic_config__", {}
        )
        self.copies_on_assignment: bool = bool(config.get("validate_assignment"))
        self._takes_any_key: bool = config.get("extra") == "allow"
        self.merges: Mapping[str, Merge] = merges_of(python_type, f"State type {python_type.__name__}")

    @property
    def name(self) -> str:
        return self.python_type.__name__

    def load(self, custom_state: Mapping[str, JSON]) -> StateT:
        """The value behind stored state; a missing key takes its field's default.

        Raises:
            InvalidStateError: the type rejects it.
        """
        return self.load_json(encode(dict(custom_state)))

    def load_json(self, data: bytes) -> StateT:
        """Like `load`, from a JSON document."""
        try:
            return self._adapter.validate_json(data, by_alias=False, by_name=True)
        except SCHEMA_PROBLEMS:
            raise
        except REFUSALS as problem:
            raise InvalidStateError(self.name, refusal(problem)) from problem

    def dump_json(self, value: StateT) -> bytes:
        """The value as a JSON document, without fields that were deleted from it.

        Raises:
            InvalidStateError: something in it has no JSON form.
        """
        deleted = self._deleted(value)
        try:
            return self._adapter.dump_json(
                _whole(value, deleted), exclude=deleted, by_alias=False, round_trip=True, warnings=False
            )
        except REFUSALS as problem:
            raise InvalidStateError(self.name, refusal(problem)) from problem

    def dump(self, value: StateT) -> dict[str, JSON]:
        """The value as stored state; raises like `dump_json`."""
        return decode_json(self.dump_json(value))

    def initial(self, given: StateT | Mapping[str, JSON] | None = None) -> dict[str, JSON]:
        """The state a session starts with: the defaults, overridden by `given`.

        Raises:
            InvalidStateError: `given` does not fit.
        """
        if isinstance(given, self.python_type):
            dumped = self.dump_json(given)
            self.load_json(dumped)
            return decode_json(dumped)
        if given is not None and not isinstance(given, Mapping):
            raise InvalidStateError(self.name, f"{type(given).__name__} is neither a {self.name} nor a mapping")
        overrides = cast("Mapping[str, JSON]", given or {})
        self.check_known(overrides)
        return {**overrides, **self.dump(self.load(overrides))}

    def check_known(self, keys: Iterable[str]) -> None:
        """Reject unknown keys: a misspelt key would be stored and never read.

        Raises:
            InvalidStateError: a key is not a field of the type.
        """
        fields = self._fields()
        unknown = [key for key in keys if key not in fields]
        if unknown and self.python_type is NoState:
            raise InvalidStateError(self.name, "the agent has no state; define it with Agent(state=YourModel)")
        if unknown and not self._takes_any_key:
            raise InvalidStateError(self.name, f"{', '.join(unknown)}: no such field; it has {', '.join(fields)}")

    def _fields(self) -> tuple[str, ...]:
        if issubclass(self.python_type, BaseModel):
            return tuple(self.python_type.model_fields)
        return tuple(field.name for field in dataclasses.fields(cast("Any", self.python_type)))

    def _deleted(self, value: StateT) -> set[str]:
        """Fields of a dataclass that `del` removed; a pydantic model leaves them out by itself."""
        if self._is_model:
            return set()
        own = getattr(value, "__dict__", None)
        return {name for name in self._fields() if (name not in own if own is not None else not hasattr(value, name))}


def _whole(value: StateT, deleted: set[str]) -> StateT:
    """A dataclass that can be read field by field, although some fields were deleted."""
    if not deleted:
        return value
    filled = copy.copy(value)
    for name in deleted:
        object.__setattr__(filled, name, None)
    return filled


def state_type_of(python_type: type[StateT]) -> StateType[StateT]:
    """The state type of a class, created once.

    Raises:
        DefinitionError: the class cannot hold an agent's state; says why and what to do.
    """
    _check_shape(python_type, f"State type {getattr(python_type, '__name__', repr(python_type))}")
    return _made_once(python_type)


@lru_cache(maxsize=256)
def _made_once(python_type: type[StateT]) -> StateType[StateT]:
    subject = f"State type {python_type.__name__}"
    try:
        state_type = StateType(python_type)
        state_type.load(state_type.initial())
    except SCHEMA_PROBLEMS as problem:
        raise DefinitionError(subject, f"pydantic cannot handle it: {unfit(problem)}") from problem
    except InvalidStateError as problem:
        raise DefinitionError(subject, f"its defaults do not survive being stored: {problem.problem}.") from problem
    _check_no_secrets(python_type, subject)
    _check_read_back(python_type, subject)
    return state_type


def _check_shape(python_type: type[Any], subject: str) -> None:
    if dataclasses.is_dataclass(get_origin(python_type)):
        raise DefinitionError(
            subject,
            f"{python_type!r} is a generic dataclass, whose type arguments would not be checked; make it a pydantic "
            "model, or write out the types of its fields.",
        )
    is_model = inspect.isclass(python_type) and issubclass(python_type, BaseModel)
    if not is_model and not (inspect.isclass(python_type) and dataclasses.is_dataclass(python_type)):
        raise DefinitionError(subject, "a state type is a pydantic model or a dataclass.")
    if issubclass(python_type, RootModel):
        raise DefinitionError(subject, "a RootModel has no fields; state needs named fields.")
    if issubclass(python_type, BaseModel):
        required = [name for name, field in python_type.model_fields.items() if field.is_required()]
        frozen = bool(python_type.model_config.get("frozen"))
    else:
        fields = dataclasses.fields(cast("Any", python_type))
        missing = dataclasses.MISSING
        required = [field.name for field in fields if field.default is missing and field.default_factory is missing]
        frozen = cast("Any", python_type).__dataclass_params__.frozen
    if required:
        raise DefinitionError(
            subject,
            f"every field needs a default, because a session starts with nothing else; {', '.join(required)} "
            f"{'has' if len(required) == 1 else 'have'} none.",
        )
    if frozen:
        raise DefinitionError(subject, "it is frozen, but tools change ctx.state in place.")


def _check_no_secrets(python_type: type[Any], subject: str) -> None:
    """Secret types are stored as asterisks: the value would be lost silently."""
    try:
        schema = TypeAdapter(python_type).json_schema()
    except PydanticUserError:
        # Not every type that can be stored has a JSON schema.
        return
    if b'"writeOnly":true' in encode(schema):
        raise DefinitionError(subject, "state is stored in plain text; give secrets to tools as deps, not as state.")


def _check_read_back(python_type: type[Any], subject: str) -> None:
    """A dataclass is loaded through its constructor: a field that the constructor does not take would be reset every
    time."""
    forgotten = list(_not_read_back(TypeAdapter(python_type).core_schema))
    if forgotten:
        raise DefinitionError(
            subject,
            f"{', '.join(forgotten)}: a field with init=False is stored, but never read back; remove init=False, or "
            "compute the value in __post_init__.",
        )


def _not_read_back(schema: Any) -> Iterator[str]:
    """The fields in a schema, at any depth, that neither the constructor takes nor `__post_init__` could fill in."""
    if isinstance(schema, Mapping):
        found = cast("Mapping[str, Any]", schema)
        if found.get("type") == "dataclass" and not found.get("post_init"):
            fields = found["schema"].get("fields", ())
            yield from (f"{found['cls'].__name__}.{field['name']}" for field in fields if not field.get("init", True))
        # The others hold the author's own values.
        schema = [part for key, part in found.items() if key not in ("default", "metadata")]
    elif not isinstance(schema, list | tuple):
        return
    for part in cast("Iterable[Any]", schema):
        yield from _not_read_back(part)
