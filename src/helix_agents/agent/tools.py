"""A tool: a function a model may call, with everything the engine has to know about calling it."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import NoneType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, get_args, overload

from pydantic import TypeAdapter, ValidationError

from helix_agents.agent.availability import AvailabilityPredicate, check_available
from helix_agents.agent.calling import RunInThread, call_possibly_slow, call_quick, is_async, is_generator, takes
from helix_agents.agent.choices import check_choice, check_switch, check_whole
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.docstrings import read_docstring
from helix_agents.agent.durations import Deadline, Duration, deadline_milliseconds, optional_milliseconds
from helix_agents.agent.failures import ControlFlow
from helix_agents.agent.names import check_tool_name
from helix_agents.agent.outcomes import ApprovalPredicate, Effect, Preview, Reconcile, Reconciled, UnknownOutcome
from helix_agents.agent.schemas import (
    REFUSALS,
    SCHEMA_PROBLEMS,
    adapter_for,
    arguments_json,
    content_of,
    jsonable,
    refusal,
    unfit,
)
from helix_agents.agent.signatures import NOTHING, Signature, read_signature, written_function
from helix_agents.domain.entries import Change
from helix_agents.domain.errors import DefinitionError, ToolInputError, ToolOutputError, UnstorableValueError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.parts import Content, in_json, looks_like_parts, parts_of
from helix_agents.domain.pending import OnDeadline
from helix_agents.domain.records import JSON, encode
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.llm import ToolSpec

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

ToolKind: TypeAlias = Literal["server", "client", "question", "agent", "companion", "handoff"]
"""What runs the tool: this library, the client, a person who answers, another agent, or, for the last two, the engine
itself."""


class ToolInput(Protocol):
    """The input of a tool."""

    @property
    def schema(self) -> dict[str, JSON]:
        """The JSON schema the model sees."""
        ...

    def parse(self, data: bytes | str) -> dict[str, Any]:
        """The values in a JSON object; raises pydantic's `ValidationError`."""
        ...

    def dump(self, values: Mapping[str, Any]) -> dict[str, JSON]:
        """The values as JSON that `parse` reads back."""
        ...


_TIMES_OUT = OnDeadline()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tool(Generic[P, R_co]):
    """A function that a model may call. You can still call it like any function: `await search(ctx, "tides")`.

    Create one with `tool` or `client_tool`; the methods are for the engine.
    """

    name: str
    description: str
    input: ToolInput
    function: Callable[P, R_co]
    kind: ToolKind = "server"
    strict: bool | None = None
    timeout_ms: int | None = None
    retries: int | None = None
    effect: Effect | None = None
    unknown_outcome: UnknownOutcome | None = None
    finish_with: bool = False
    require_approval: bool | ApprovalPredicate = False
    deadline_ms: int | Literal["inherit"] | None = "inherit"
    on_deadline: OnDeadline = _TIMES_OUT
    output: TypeAdapter[Any] | None = None
    preview: Preview | None = None
    available: AvailabilityPredicate | None = None

    def __post_init__(self) -> None:
        _check_options(self)
        _check_combinations(self)
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(self.function, name):
                object.__setattr__(self, name, getattr(self.function, name))
        object.__setattr__(self, "__wrapped__", self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.kind} tool {self.name!r}>"

    @cached_property
    def _is_async(self) -> bool:
        return is_async(self.function)

    @property
    def runs_on_thread(self) -> bool:
        """Whether the function is sync, so that it keeps running even after nothing waits for it any more."""
        return not self._is_async

    @property
    def subject(self) -> str:
        """The tool in an error message."""
        return f"Tool {self.name!r}"

    @property
    def wanted_deps(self) -> type[Any] | None:
        """The type it takes as `ctx.deps`, if it cannot run without."""
        wanted = None if self.signature is None else self.signature.wanted_deps
        return wanted if inspect.isclass(wanted) and wanted not in (NOTHING, Any, NoneType, object) else None

    @property
    def signature(self) -> Signature | None:
        """The signature that was read from the function, if that is where the input comes from."""
        return self.input if isinstance(self.input, Signature) else None

    @cached_property
    def without_context(self) -> inspect.Signature:
        """How a program calls the function, which gets its context from the engine."""
        whole = inspect.signature(self.function)
        context = None if self.signature is None else self.signature.context
        return whole.replace(parameters=[each for name, each in whole.parameters.items() if name != context])

    @cached_property
    def result_adapter(self) -> TypeAdapter[Any] | None:
        """How a stored result is read as the object that the function returned; None if nothing describes that."""
        returns = NOTHING if self.signature is None else self.signature.returns
        if self.output is not None or returns in (NOTHING, Any, object):
            return self.output
        try:
            return adapter_for(returns)
        except SCHEMA_PROBLEMS:
            return None

    @property
    def waits(self) -> bool:
        """Whether a call of this tool can end up waiting for an answer."""
        return self.kind != "server" or bool(self.require_approval) or self.effect == "once"

    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.input.schema, strict=self.strict)

    def effect_of_call(self, *, approved: bool) -> Effect:
        """What repeating a call means: an approval is good for one execution, unless the tool says otherwise."""
        return self.effect or ("once" if approved else "repeatable")

    def parse(self, arguments: Mapping[str, JSON] | str) -> dict[str, Any]:
        """The values to call the function with. Arguments that were not valid JSON are passed as the original text.

        Raises:
            ToolInputError: the arguments do not fit; the message is a sentence the model can act on.
        """
        try:
            return self.input.parse(arguments_json(arguments))
        except REFUSALS as problem:
            raise ToolInputError(self.name, refusal(problem)) from problem

    def dump_input(self, values: Mapping[str, Any]) -> dict[str, JSON]:
        """Parsed values as JSON, defaults included: what a person sees, and what `parse` reads back later."""
        return self.input.dump(values)

    async def needs_approval(
        self,
        values: Mapping[str, Any],
        context: RunContext[Any, Any],
        *,
        on_error: Callable[[BaseException], object],
    ) -> bool:
        """Whether a person has to approve this call. A predicate that raises is reported and counts as yes."""
        if isinstance(self.require_approval, bool):
            return self.require_approval
        try:
            what = f"The approval predicate of {self.name!r}"
            return bool(await call_quick(what, self.require_approval, values, context))
        except (Exception, ControlFlow) as problem:
            on_error(problem)
            return True

    async def show(
        self,
        values: Mapping[str, Any],
        context: RunContext[Any, Any],
        *,
        on_error: Callable[[BaseException], object],
    ) -> JSON:
        """What the approving person sees beside the call's input. A preview that cannot be made is reported."""
        if self.preview is None:
            return None
        try:
            return jsonable(await call_quick(f"The preview of {self.name!r}", self.preview, values, context))
        except (Exception, ControlFlow) as problem:
            on_error(problem)
            return {"preview_failed": str(problem)}

    async def call(
        self,
        context: ToolContext[Any, Any],
        values: Mapping[str, Any],
        *,
        in_thread: RunInThread = asyncio.to_thread,
        apart: bool = False,
    ) -> Any:
        """Run the function and return its result: a sync function on a thread, an async one `apart` if requested.

        Raises:
            RetryTool, ToolFailed, OutcomeUnknown, FailRun: the function raised it on purpose.
            Exception: anything else the function raised, including `SystemExit` and the like.
        """
        if self.kind != "server" or self.signature is None:
            raise TypeError(f"{self.subject} is run by the client")
        sync = self.runs_on_thread
        bound = self.signature.bind(self.function, _seen_from(context, sync=sync), values)
        return await call_possibly_slow(self.subject, bound, in_thread=in_thread if sync else None, apart=apart)

    async def close(self) -> None:
        """Release what the tool keeps open in this process once nothing uses it. A later call opens it again."""

    async def reconcile(
        self,
        context: ToolContext[Any, Any],
        values: Mapping[str, Any],
        *,
        in_thread: RunInThread = asyncio.to_thread,
    ) -> Reconciled:
        """Ask the tool's reconcile function what happened to a call whose outcome is unknown; raises like `call`."""
        ask = cast("Reconcile", self.unknown_outcome)
        sync = not is_async(ask)
        bound = partial(ask, values, _seen_from(context, sync=sync))
        what = f"The reconcile function of {self.name!r}"
        return await call_possibly_slow(what, bound, in_thread=in_thread if sync else None)

    def dump(self, result: Any) -> Content:
        """The function's result as it is stored and shown to the model. A string is kept as it is.

        Raises:
            ToolOutputError: the result does not fit the declared output type, or has no JSON form.
        """
        try:
            if self.output is None:
                return content_of(result)
            return self._declared(self.output, self.output.validate_python(result))
        except UnstorableValueError as problem:
            raise ToolOutputError(self.name, str(problem)) from problem
        except REFUSALS as problem:
            raise ToolOutputError(self.name, refusal(problem)) from problem

    def check_output(self, result: Any, given: Mapping[str, JSON]) -> Content:
        """The client's result for a call with this input, after the declared output type has accepted it. It is data
        unless that type consists of texts, images and files.

        Raises:
            ToolOutputError: the result does not fit.
        """
        try:
            plain = jsonable(result)
            if self.output is None:
                return Content(plain)
            return self._declared(self.output, _read(self.output, plain))
        except UnstorableValueError as problem:
            raise ToolOutputError(self.name, str(problem)) from problem
        except REFUSALS as problem:
            raise ToolOutputError(self.name, refusal(problem)) from problem

    def _declared(self, output: TypeAdapter[Any], value: Any) -> Content:
        """A value of the declared type."""
        parts = parts_of(value)
        if parts is not None:
            return in_json(parts)
        return Content(jsonable(output.dump_python(value, mode="json", by_alias=True)))


@dataclass(frozen=True, kw_only=True)
class Wakeup:
    """News for an idle session: the texts to tell it, and the changes that record that it was told.

    `gives_up_waiting` means that a session waiting for an answer is told as well, as with any new message: calls that
    have no answer yet are given up.
    """

    session_id: SessionId
    texts: tuple[str, ...]
    changes: tuple[Change, ...]
    gives_up_waiting: bool = False


class Capabilities(Protocol):
    """A bundle of ready-made tools; the library decides their names."""

    @property
    def tools(self) -> Sequence[Tool[..., Any]]:
        """The tools the agent may call."""
        ...

    async def news(self, context: RunContext[Any, Any]) -> Sequence[str]:
        """What the model should know before its next step. The texts are part of the step's commit, and so are changes
        to entries made through the context."""
        ...

    async def rest(self, context: RunContext[Any, Any]) -> None:
        """Called when a run is done or waits for an answer. Changes to entries made through the context are part of the
        run's last commit. A run that failed or was stopped ends without this call."""
        ...

    async def wakeups(self, store: EntryStore, agent: str) -> Sequence[Wakeup]:
        """Sessions of an agent that should be told something even if they are idle; at most one wakeup per session."""
        ...

    async def sweep(self, store: EntryStore, is_over: Callable[[SessionId], Awaitable[bool]]) -> None:
        """Periodic work, done by any number of processes at once. `is_over` tells whether a run's session can no longer
        be continued by anything."""
        ...


def _read(output: TypeAdapter[Any], plain: JSON) -> Any:
    """A value that was sent as JSON. Clients of some protocols send even a single image in a list."""
    try:
        return output.validate_json(encode(plain))
    except ValidationError:
        if looks_like_parts(plain) and len(plain) == 1:
            return output.validate_json(encode(plain[0]))
        raise


def _seen_from(context: ToolContext[Any, Any], *, sync: bool) -> ToolContext[Any, Any]:
    return context.for_thread(asyncio.get_running_loop()) if sync else context


def _check_options(tool: Tool[..., Any]) -> None:
    """Check each option by itself: nothing else checks the types of what user code passes."""
    given = vars(tool)
    if not isinstance(given["description"], str):
        raise DefinitionError(tool.subject, f"description={given['description']!r} is not a string.")
    if given["effect"] is not None:
        check_choice(tool.subject, "effect", given["effect"], get_args(Effect))
    if given["unknown_outcome"] is not None and not callable(given["unknown_outcome"]):
        known = get_args(get_args(UnknownOutcome)[0])
        check_choice(tool.subject, "unknown_outcome", given["unknown_outcome"], known, other=", or a function")
    if not callable(given["require_approval"]):
        check_switch(tool.subject, "require_approval", given["require_approval"], other=", nor a function that decides")
    for option in ("require_approval", "unknown_outcome"):
        if callable(given[option]) and not takes(given[option], 2):
            asked = f"{option} is called with the call's input and its context"
            raise DefinitionError(tool.subject, f"{asked}; write it as a function of both, (given, ctx).")
    check_available(tool.subject, given["available"])
    check_switch(tool.subject, "finish_with", given["finish_with"])
    if given["strict"] is not None:
        check_switch(tool.subject, "strict", given["strict"])
    if given["retries"] is not None:
        check_whole(tool.subject, "retries", given["retries"], 0)


def _check_combinations(tool: Tool[..., Any]) -> None:
    problem = None
    if not tool.description.strip():
        problem = "the model decides from the description when to call it; write a docstring, or give description=…."
    elif tool.kind != "server" and tool.finish_with:
        problem = "the client runs it, so it cannot be finish_with; let a server tool take its result and finish."
    elif tool.kind != "server" and tool.require_approval:
        problem = "the client runs it, so a person is asked anyway; require_approval is for tools that run here."
    elif tool.require_approval and tool.finish_with:
        problem = "a finish_with tool cannot wait for approval; gate an ordinary tool and finish after it."
    elif tool.unknown_outcome is not None and tool.effect_of_call(approved=bool(tool.require_approval)) != "once":
        problem = 'unknown_outcome is for effect="once"; a repeatable tool is run again anyway.'
    elif not tool.waits and (tool.deadline_ms != "inherit" or tool.on_deadline.action != "timeout"):
        problem = "it never waits for an answer, so a deadline has no meaning; timeout=… limits how long it runs."
    elif tool.on_deadline.action == "default" and tool.kind == "server":
        problem = 'an approval has no default answer; use on_deadline="timeout" or "deny".'
    elif tool.deadline_ms is None and tool.on_deadline.action != "timeout":
        problem = "on_deadline has no effect without a deadline; give deadline=…, or leave it out."
    if problem is not None:
        raise DefinitionError(tool.subject, problem)


def output_adapter(form: Any, subject: str) -> TypeAdapter[Any] | None:
    """The adapter that checks results against a declared type; None if no type, or any type, was declared.

    Raises:
        DefinitionError: pydantic cannot handle the type.
    """
    if form is None or form is NOTHING or form is Any:
        return None
    try:
        return adapter_for(form)
    except SCHEMA_PROBLEMS as problem:
        raise DefinitionError(
            subject, f"output={form!r} is not a type pydantic can check: {unfit(problem)}"
        ) from problem


def named_function(function: Callable[..., Any], name: str | None) -> str:
    """The name of the tool made from a function, if the name is allowed.

    Raises:
        DefinitionError: it is not a function, has no name, or its name is not allowed.
    """
    if isinstance(function, Tool):
        raise DefinitionError(f"Tool {function.name!r}", "it is already a tool; decorate the function once.")
    if not callable(function) or inspect.isclass(function):
        raise DefinitionError(f"Tool {name or function!r}", "a tool is made from a function.")
    found = name or getattr(written_function(function), "__name__", "__call__")
    if found in ("__call__", "<lambda>"):
        raise DefinitionError(f"Tool {function!r}", "it has no name of its own; write tool(name=…).")
    return check_tool_name(found)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool | None = None,
    timeout: Duration | None = None,
    retries: int | None = None,
    effect: Effect | None = None,
    unknown_outcome: UnknownOutcome | None = None,
    finish_with: bool = False,
    require_approval: bool | ApprovalPredicate = False,
    deadline: Deadline = "inherit",
    on_deadline: Literal["timeout", "deny"] = "timeout",
    output: Any = None,
    available: AvailabilityPredicate | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool | None = None,
    timeout: Duration | None = None,
    retries: int | None = None,
    effect: Effect | None = None,
    unknown_outcome: UnknownOutcome | None = None,
    finish_with: bool = False,
    require_approval: bool | ApprovalPredicate = False,
    deadline: Deadline = "inherit",
    on_deadline: Literal["timeout", "deny"] = "timeout",
    output: Any = None,
    available: AvailabilityPredicate | None = None,
) -> Any:
    """Make a function a tool: `@tool`, `@tool(require_approval=True)`, or `tool(service.search)` for a method.

    The model sees the signature and the docstring. The engine fills in a parameter of type `ToolContext`. A sync
    function runs on a thread.

    Args:
        name: The name the model calls the tool by. Defaults to the function's name.
        description: What the model reads about the tool. Defaults to the docstring.
        strict: Ask the provider to hold the model to the schema.
        timeout: How long one call may run.
        retries: How many times per turn the model may correct its arguments or be told to retry. Defaults to the
            agent's `retries`.
        effect: `"once"` if repeating the call would do harm: its intent and result are recorded, and it never silently
            runs twice. `"repeatable"` if not. If left out, a call that a person approved is `"once"`.
        unknown_outcome: What to do about a `"once"` call whose process died while it ran: ask a person (the default),
            `"retry"`, `"fail"`, or a function that finds out.
        finish_with: The function's result is the agent's output, and ends the run.
        require_approval: True if a person has to approve each call, or a function of input and context that decides.
        deadline: How long a call may wait for a person; None means forever. Defaults to the agent's or the executor's
            deadline.
        on_deadline: What an unanswered approval counts as.
        output: The type results must have.
        available: Decides before each model call whether the model may call the tool: a function of the `RunContext`.

    Raises:
        DefinitionError: no model could call the function, or the options contradict each other.
    """

    def define(function: Callable[..., Any]) -> Tool[..., Any]:
        called = named_function(function, name)
        subject = f"Tool {called!r}"
        check_choice(subject, "on_deadline", on_deadline, ("timeout", "deny"))
        if is_generator(function):
            raise DefinitionError(subject, "a tool returns one result; report progress with ctx.emit instead of yield.")
        documented = read_docstring(inspect.getdoc(written_function(function)))
        return Tool(
            name=called,
            description=description or documented.description,
            input=read_signature(function, subject, documented.parameters),
            function=function,
            strict=strict,
            timeout_ms=optional_milliseconds(timeout, subject, "timeout"),
            retries=retries,
            effect=effect,
            unknown_outcome=unknown_outcome,
            finish_with=finish_with,
            require_approval=require_approval,
            deadline_ms=deadline_milliseconds(deadline, subject, "deadline"),
            on_deadline=OnDeadline(action=on_deadline),
            output=output_adapter(output, subject),
            available=available,
        )

    return define if function is None else define(function)
