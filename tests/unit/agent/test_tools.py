"""A tool is a function with a schema: what the model sees, what it may send, and what the engine does with it."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field

from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun, RetryTool, ToolFailed
from helix_agents.agent.outcomes import DidNotHappen, Happened, StillUnknown
from helix_agents.agent.tools import Tool, tool
from helix_agents.domain.errors import DefinitionError, ToolInputError, ToolOutputError
from helix_agents.domain.pending import OnDeadline
from helix_agents.ports.llm import ToolSpec


class Notes(BaseModel):
    queries: list[str] = []


class Place(BaseModel):
    city: str
    country: str = "de"


@tool
async def search(ctx: ToolContext[Notes], query: str, limit: int = 5) -> list[str]:
    """Search the archive.

    Args:
        query: What to look for.
        limit: How many pages to give back,
            at most.

    Returns:
        Pages.
    """
    ctx.state.queries.append(query)
    return [f"a page about {query}"] * limit


def defined(function: Callable[..., Any], **options: Any) -> Tool[..., Any]:
    return tool(description="Something.", **options)(function)


def context(**given: Any) -> ToolContext[Any, Any]:
    return ToolContext.standalone(**given)


# ---- what the model sees


def test_the_model_sees_name_docstring_and_signature_without_the_context() -> None:
    assert search.spec() == ToolSpec(
        name="search",
        description="Search the archive.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "limit": {"type": "integer", "default": 5, "description": "How many pages to give back, at most."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )


def test_name_description_and_strictness_can_be_given() -> None:
    renamed = tool(name="find-it", description="Find it.", strict=True)(search.function)
    spec = renamed.spec()
    assert (spec.name, spec.description, spec.strict) == ("find-it", "Find it.", True)


def test_a_field_describes_and_limits_a_parameter_and_wins_over_the_docstring() -> None:
    @tool
    def book(
        seats: Annotated[int, Field(ge=1, description="How many seats.")],
        row: Literal["front", "back"] = Field("front", description="Where to sit."),
    ) -> None:
        """Book seats.

        Args:
            seats: Not this text.
        """

    assert book.spec().parameters["properties"] == {
        "seats": {"type": "integer", "minimum": 1, "description": "How many seats."},
        "row": {"type": "string", "enum": ["front", "back"], "default": "front", "description": "Where to sit."},
    }


def test_a_parameter_may_have_any_name() -> None:
    """Names that would clash in a pydantic model, or that it takes for private, are ordinary here."""

    def odd(json: str, copy: int, model_config: str, model_x: int, schema: str, _hidden: int = 3) -> tuple:
        return json, copy, model_config, model_x, schema, _hidden

    given = {"json": "a", "copy": 1, "model_config": "b", "model_x": 2, "schema": "c", "_hidden": 4}
    assert defined(odd).parse(given) == given


def test_a_default_that_json_cannot_say_is_left_out_of_the_schema() -> None:
    nothing = object()

    def wait(until: Any = nothing) -> None: ...

    made = defined(wait)
    assert "default" not in made.spec().parameters["properties"]["until"]
    assert made.parse({})["until"] is nothing


def test_a_recursive_type_is_seen_as_an_object() -> None:
    parameters = defined(walk).spec().parameters
    assert parameters["type"] == "object"
    assert "Node" in parameters["$defs"]


class Node(BaseModel):
    name: str
    children: list["Node"] = []


def walk(start: Node) -> int:
    return len(start.children)


# ---- what the model may send


@pytest.mark.parametrize("arguments", [{"query": "tides"}, '{"query": "tides"}', ' {"query": "tides"} '])
def test_arguments_are_validated_and_defaults_filled_in(arguments: Any) -> None:
    assert search.parse(arguments) == {"query": "tides", "limit": 5}


@pytest.mark.parametrize("arguments", [{}, "{}", "", " ", "null", " null\n"])
def test_no_arguments_are_no_arguments_however_they_are_written(arguments: Any) -> None:
    @tool
    def today() -> str:
        """The date."""
        return ""

    assert today.parse(arguments) == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "query: Field required"),
        ({"query": 3}, "query: Input should be a valid string, got 3"),
        ({"query": "x", "limit": "many"}, "limit: Input should be a valid integer.*got 'many'"),
        ({"query": "x", "lmit": 3}, "lmit: Extra inputs are not permitted"),
        ('{"query": "x"', "Invalid JSON: EOF"),
        ("[1]", "should be an object"),
        ("I would rather search for tides", "Invalid JSON"),
        ({"query": "x" * 500, "limit": "y" * 500}, "got 'yyyyyyyyyy.*…"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_a_sentence_the_model_can_act_on(arguments: Any, says: str) -> None:
    with pytest.raises(ToolInputError, match=says) as refused:
        search.parse(arguments)
    assert str(refused.value).startswith("The arguments for 'search' were refused: ")
    assert len(str(refused.value)) < 400


def test_no_arguments_may_be_an_empty_text() -> None:
    def now() -> str:
        return "now"

    assert defined(now).parse("") == {}


def test_parsed_arguments_are_python_values_and_their_json_reads_back() -> None:
    class Colour(Enum):
        RED = "red"

    def paint(
        colour: Colour,
        on: date,
        at: datetime,
        price: Decimal,
        place: Place,
        tags: set[str],
        pair: tuple[int, str],
        how: timedelta = timedelta(seconds=2),
    ) -> None: ...

    paints = defined(paint)
    values = paints.parse(
        {
            "colour": "red",
            "on": "2026-05-01",
            "at": "2026-05-01T10:00:00Z",
            "price": "1.10",
            "place": {"city": "Kiel"},
            "tags": ["a"],
            "pair": [1, "b"],
        }
    )
    assert values == {
        "colour": Colour.RED,
        "on": date(2026, 5, 1),
        "at": datetime(2026, 5, 1, 10, tzinfo=UTC),
        "price": Decimal("1.10"),
        "place": Place(city="Kiel"),
        "tags": {"a"},
        "pair": (1, "b"),
        "how": timedelta(seconds=2),
    }
    shown = paints.dump_input(values)
    assert shown["place"] == {"city": "Kiel", "country": "de"}, "a person is shown everything, defaults included"
    assert paints.parse(shown) == values


# ---- running it


async def test_a_tool_stays_callable_as_the_function_it_is() -> None:
    notes = Notes()
    assert await search(ToolContext.standalone(notes), "tides", limit=1) == ["a page about tides"]
    assert notes.queries == ["tides"]
    assert vars(search)["__name__"] == "search"
    assert inspect.signature(search) == inspect.signature(search.function)
    assert (inspect.getdoc(search) or "").startswith("Search the archive.")


async def test_the_context_is_filled_in_wherever_it_stands() -> None:
    def first(ctx: ToolContext[Notes], a: int) -> Any:
        return ctx.tool_call_id, a

    async def middle(a: int, world: ToolContext, b: int = 2) -> Any:
        return world.tool_call_id, a, b

    def last(a: int, *, ctx: Annotated[RunContext[Notes, Any], "the run"]) -> Any:
        return ctx.session_id, a

    def by_position(a: int, ctx: ToolContext[Any, str], /, b: int) -> Any:
        return ctx.deps, a, b

    for function, given, answer in [
        (first, {"a": 1}, ("call-1", 1)),
        (middle, {"a": 1}, ("call-1", 1, 2)),
        (last, {"a": 1}, ("session-1", 1)),
        (by_position, {"a": 1, "b": 2}, ("the deps", 1, 2)),
    ]:
        made = defined(function)
        assert await made.call(context(deps="the deps"), made.parse(given)) == answer


async def test_annotations_may_be_written_as_text() -> None:
    module: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n"
        "from helix_agents.agent.context import ToolContext\n"
        "from tests.unit.agent.test_tools import Notes, Place\n"
        "async def visit(ctx: ToolContext[Notes], place: Place) -> str:\n"
        "    return ctx.tool_call_id + place.city\n",
        module,
    )
    made = defined(module["visit"])
    assert await made.call(context(), made.parse({"place": {"city": "Kiel"}})) == "call-1Kiel"


async def test_a_sync_function_runs_on_a_thread_and_an_async_one_does_not() -> None:
    def here() -> str:
        return threading.current_thread().name

    async def there() -> str:
        return here()

    assert await defined(here).call(context(), {}) != here()
    assert await defined(there).call(context(), {}) == here()


async def test_what_a_thread_says_arrives_on_the_event_loop_in_order_before_its_result() -> None:
    heard: list[Any] = []

    def listen(name: str, data: Any) -> None:
        asyncio.get_running_loop()
        heard.append((name, data))

    def work(ctx: ToolContext[Notes]) -> str:
        for percent in (10, 50, 90):
            ctx.emit("progress", percent)
        ctx.record_usage("pages", 3)
        ctx.state.queries.append("from the thread")
        return "done"

    ctx = context(state=Notes(), emit=listen, record_usage=heard.append)
    assert await defined(work).call(ctx, {}) == "done"
    assert heard[:3] == [("progress", 10), ("progress", 50), ("progress", 90)]
    assert heard[3].name == "pages"
    assert ctx.state.queries == ["from the thread"]


async def test_a_runtime_may_bring_its_own_threads() -> None:
    used: list[str] = []

    async def pool(function: Callable[[], Any]) -> Any:
        used.append("pool")
        return await asyncio.to_thread(function)

    def work() -> int:
        return 1

    assert await defined(work).call(context(), {}, in_thread=pool) == 1
    assert used == ["pool"]


async def test_methods_partials_callable_objects_and_wrapped_functions_are_tools_too() -> None:
    class Archive:
        def find(self, word: str) -> str:
            """Find a word."""
            return f"found {word}"

        async def __call__(self, word: str) -> str:
            """Find it by calling."""
            return f"called {word}"

    async def scale(by: int, value: int) -> int:
        """Scale a value."""
        return by * value

    @functools.wraps(scale)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return scale(*args, **kwargs)

    archive = Archive()
    doubled = tool(name="double")(functools.partial(scale, by=2))
    for made, given, answer in [
        (tool(archive.find), {"word": "x"}, "found x"),
        (tool(name="call_archive")(archive), {"word": "x"}, "called x"),
        (doubled, {"by": 2, "value": 4}, 8),
        (tool(wrapped), {"by": 3, "value": 4}, 12),
    ]:
        assert await made.call(context(), made.parse(given)) == answer
    assert tool(archive.find).description == "Find a word."
    assert tool(name="call_archive")(archive).description == "Find it by calling."
    assert doubled.description == "Scale a value."


# ---- how it fails


@pytest.mark.parametrize("decision", [RetryTool("say a date"), ToolFailed("no such invoice"), FailRun("no budget")])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_a_decision_of_the_tool_passes_through_its_own_except_exception(decision: Any, sync: bool) -> None:
    def raising() -> None:
        try:
            raise decision
        except Exception:
            pytest.fail("swallowed")

    async def async_raising() -> None:
        raising()

    with pytest.raises(type(decision)) as raised:
        await defined(raising if sync else async_raising).call(context(), {})
    assert raised.value is decision


@pytest.mark.parametrize("apart", [False, True], ids=["in the task", "apart"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), SystemExit(3), GeneratorExit("no")])
async def test_anything_else_is_an_ordinary_exception_and_ends_nothing_but_the_call(
    error: BaseException, sync: bool, apart: bool
) -> None:
    def raising() -> None:
        raise error

    async def async_raising() -> None:
        raise error

    with pytest.raises((ValueError, RuntimeError)) as raised:
        await asyncio.wait_for(defined(raising if sync else async_raising).call(context(), {}, apart=apart), 5)
    assert error in (raised.value, raised.value.__cause__) or isinstance(raised.value.__cause__, type(error))


@pytest.mark.parametrize("error", [GeneratorExit(), KeyboardInterrupt()])
async def test_what_a_thread_raises_to_end_more_than_itself_ends_the_call_only(error: BaseException) -> None:
    def raising() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"'raising' raised {type(error).__name__}"):
        await asyncio.wait_for(defined(raising).call(context(), {}), 5)


async def test_a_call_that_nobody_waits_for_any_more_closes_without_complaint() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    call = defined(waits).call(context(), {})
    call.send(None)
    call.close()


async def test_a_call_that_is_closed_while_it_waits_deep_inside_closes_without_complaint() -> None:
    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("tidied up")

    async def delegates() -> None:
        await waits()

    closed: list[str] = []
    call = defined(delegates).call(context(), {})
    call.send(None)
    call.close()
    assert closed == ["tidied up"]


async def test_a_decision_inside_a_task_group_is_found() -> None:
    async def decides() -> None:
        raise ToolFailed("no such invoice")

    async def gathers() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(decides())
            group.create_task(asyncio.sleep(60))

    with pytest.raises(ToolFailed, match="no such invoice"):
        await defined(gathers).call(context(), {})


async def test_a_tool_that_cancels_itself_has_failed_and_one_that_is_cancelled_is_cancelled() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="'gives_up' cancelled itself"):
        await defined(gives_up).call(context(), {})
    running = asyncio.create_task(defined(waits).call(context(), {}))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# ---- what it gives back


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        ("verbatim", "verbatim"),
        ('{"not": "parsed"}', '{"not": "parsed"}'),
        (None, None),
        (Place(city="Kiel"), {"city": "Kiel", "country": "de"}),
        ([date(2026, 1, 1), Decimal("1.5"), {"a"}, (1, 2)], ["2026-01-01", "1.5", ["a"], [1, 2]]),
        ({1: float("nan")}, {"1": None}),
        (b"text", "text"),
    ],
)
def test_a_result_is_stored_as_json_and_a_string_as_it_is(result: Any, stored: Any) -> None:
    assert search.dump(result) == (stored, False)


@pytest.mark.parametrize("result", [object(), b"\xff", "\ud800", {"a": {1: lambda: 1}}])
def test_a_result_without_a_json_form_is_refused(result: Any) -> None:
    with pytest.raises(ToolOutputError, match=r"^The result of 'search' was refused: .*[^.]\.$"):
        search.dump(result)


def test_a_result_that_refers_to_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ToolOutputError, match="Circular"):
        search.dump(circle)


def test_a_declared_output_type_checks_and_shapes_the_result() -> None:
    made = tool(output=Place)(walk_to)
    assert made.dump({"city": "Kiel"}).content == {"city": "Kiel", "country": "de"}
    with pytest.raises(ToolOutputError, match="city: Field required"):
        made.dump({})


def walk_to() -> dict[str, str]:
    """Walk somewhere."""
    return {"city": "Kiel"}


# ---- approvals and effects


def unexpected(error: BaseException) -> None:
    raise error


async def test_approval_is_asked_for_always_never_or_when_a_predicate_says_so() -> None:
    def costly(given: Any, ctx: RunContext[Any]) -> bool:
        return given["amount"] > 100

    async def from_strangers(given: Any, ctx: RunContext[Any]) -> bool:
        return ctx.user_id is None

    def pay(amount: int) -> None: ...

    async def asked(require_approval: Any, amount: int) -> bool:
        made = defined(pay, require_approval=require_approval)
        return await made.needs_approval(made.parse({"amount": amount}), context(), on_error=unexpected)

    assert await asked(True, 1) is True
    assert await asked(False, 1000) is False
    assert [await asked(costly, amount) for amount in (100, 101)] == [False, True]
    assert await asked(from_strangers, 1) is True


@pytest.mark.parametrize("error", [KeyError("amount"), FailRun("no"), SystemExit()])
async def test_a_predicate_that_raises_is_reported_and_means_that_approval_is_needed(error: BaseException) -> None:
    def broken(given: Any, ctx: RunContext[Any]) -> bool:
        raise error

    seen: list[BaseException] = []
    assert await defined(walk_to, require_approval=broken).needs_approval({}, context(), on_error=seen.append)
    assert seen == [error] or seen[0].__cause__ is error


def test_an_approved_call_must_not_happen_twice_unless_the_tool_says_it_may() -> None:
    assert search.effect_of_call(approved=False) == "repeatable"
    assert search.effect_of_call(approved=True) == "once"
    assert defined(walk_to, effect="once").effect_of_call(approved=False) == "once"
    assert defined(walk_to, effect="repeatable", require_approval=True).effect_of_call(approved=True) == "repeatable"


async def test_a_tool_can_find_out_what_became_of_a_call() -> None:
    def look(given: Any, ctx: ToolContext[Any]) -> Any:
        return {1: Happened("paid"), 2: DidNotHappen()}.get(given["amount"], StillUnknown())

    def pay(amount: int) -> None: ...

    made = defined(pay, effect="once", unknown_outcome=look)
    answers = [await made.reconcile(context(), made.parse({"amount": amount})) for amount in (1, 2, 3)]
    assert answers == [Happened("paid"), DidNotHappen(), StillUnknown()]


def test_times_are_given_in_seconds_or_as_timedeltas() -> None:
    made = defined(
        walk_to, timeout=2.5, require_approval=True, deadline=timedelta(days=1), on_deadline="deny", retries=0
    )
    assert (made.timeout_ms, made.deadline_ms, made.retries) == (2_500, 86_400_000, 0)
    assert made.on_deadline == OnDeadline(action="deny")
    assert defined(walk_to).deadline_ms == "inherit"
    assert defined(walk_to, require_approval=True, deadline=None).deadline_ms is None


# ---- what is refused at definition


def no_docstring(query: str) -> str:
    return query


def nothing_typed(query) -> str:
    """Search."""
    return query


def stars(*queries: str) -> None:
    """Search."""


def keywords(**queries: str) -> None:
    """Search."""


def two_contexts(a: ToolContext, b: ToolContext) -> None:
    """Search."""


def unresolvable(query: "NoSuchType") -> None:  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    """Search."""


def impossible(query: str, lock: threading.Lock) -> None:
    """Search."""


def optional_context(ctx: ToolContext | None) -> None:
    """Search."""


def callback(then: Callable[[int], int]) -> None:
    """Search."""


def yields(query: str):
    """Search."""
    yield query


async def yields_async(query: str):
    """Search."""
    yield query


class Service:
    def search(self, query: str) -> None:
        """Search."""


@pytest.mark.parametrize(
    ("define", "teaches"),
    [
        (lambda: tool(no_docstring), "write a docstring"),
        (lambda: tool(nothing_typed), "parameter 'query' has no type"),
        (lambda: tool(stars), r"cannot fill \*queries"),
        (lambda: tool(keywords), r"cannot fill \*\*.*give every argument a name.*functools\.wraps"),
        (lambda: tool(two_contexts), "'a' and 'b' are both contexts"),
        (lambda: tool(unresolvable), "'NoSuchType' is not defined.*at module level"),
        (
            lambda: tool(impossible),
            r"parameter 'lock' has a type that JSON cannot be read into: [^\n]*\. A tool .* ctx\.deps\.$",
        ),
        (lambda: tool(optional_context), "JSON cannot be read into"),
        (lambda: tool(callback), "parameter 'then' has a type that JSON cannot be read into"),
        (lambda: tool(yields), "ctx.emit"),
        (lambda: tool(yields_async), "ctx.emit"),
        (lambda: tool(Service.search), r"tool\(my_object.method\)"),
        (lambda: tool(Service), "made from a function"),
        (lambda: tool(search), "is already a tool"),
        (lambda: tool(lambda: None), "no name of its own"),
        (lambda: defined(walk_to, name="a b"), "1 to 64 of the characters"),
        (lambda: defined(walk_to, name="x" * 65), "1 to 64 of the characters"),
        *(
            (lambda name=name: defined(walk_to, name=name), "built-in tool")
            for name in (
                "__finish__",
                "subagent__x",
                "companion__spawnAgent",
                "load_skill",
                "read_skill_file",
                "search_memory",
                "save_memory",
                "workspace_ls",
                "state__x",
                "ask_human",
            )
        ),
        (lambda: defined(walk_to, require_approval=True, finish_with=True), "cannot wait for approval"),
        (
            lambda: defined(walk_to, require_approval=lambda place: True),
            r"require_approval is called with the call's input and its context; write .*\(given, ctx\)",
        ),
        (lambda: defined(walk_to, require_approval=lambda *, given, ctx: True), "called with the call's input"),
        (
            lambda: defined(walk_to, effect="once", unknown_outcome=lambda given: None),
            "unknown_outcome is called with the call's input and its context",
        ),
        (lambda: defined(walk_to, unknown_outcome="retry"), 'unknown_outcome is for effect="once"'),
        (
            lambda: defined(walk_to, require_approval=True, effect="repeatable", unknown_outcome="fail"),
            'unknown_outcome is for effect="once"',
        ),
        (lambda: defined(walk_to, deadline=3), "never waits for an answer"),
        (lambda: defined(walk_to, deadline=None), "never waits for an answer"),
        (lambda: defined(walk_to, on_deadline="deny"), "never waits for an answer"),
        (
            lambda: defined(walk_to, require_approval=True, deadline=None, on_deadline="deny"),
            "has no effect without a deadline",
        ),
        (lambda: defined(walk_to, timeout=0), "timeout=0 is not a duration"),
        (lambda: defined(walk_to, timeout=float("inf")), "not a duration"),
        (lambda: defined(walk_to, timeout=timedelta(seconds=-1)), "not a duration"),
        (lambda: defined(walk_to, retries=-1), "retries=-1 has to be a whole number of at least 0"),
        (lambda: defined(walk_to, retries="3"), "retries='3' has to be"),
        (lambda: defined(walk_to, effect="onec"), 'effect=\'onec\' is not one of "repeatable", "once"'),
        (lambda: defined(walk_to, effect="once", unknown_outcome="rety"), "'rety' is not one of.*or a function"),
        (lambda: defined(walk_to, require_approval=True, on_deadline="denied"), "on_deadline='denied' is not one of"),
        (
            lambda: defined(walk_to, require_approval="no"),
            "require_approval='no' is neither True nor False, nor a func",
        ),
        (lambda: defined(walk_to, finish_with="no"), "finish_with='no' is neither"),
        (lambda: defined(walk_to, strict="no"), "strict='no' is neither"),
        (lambda: tool(description=cast("Any", 5))(walk_to), "description=5 is not a string"),
        (lambda: defined(walk_to, output=threading.Lock), "not a type pydantic can check"),
    ],
)
def test_a_tool_that_cannot_work_is_refused_with_a_reason(define: Callable[[], Any], teaches: str) -> None:
    with pytest.raises(DefinitionError, match=teaches):
        define()


def test_a_callable_object_needs_a_name() -> None:
    class Nameless:
        def __call__(self, word: str) -> str:
            """Say it."""
            return word

    with pytest.raises(DefinitionError, match="no name of its own"):
        tool(Nameless())


async def test_a_client_has_to_run_what_is_declared_for_clients() -> None:
    made = Tool(name="x", description="X.", input=search.input, function=search.function, kind="client")
    with pytest.raises(TypeError, match="run by the client"):
        await made.call(context(), {})


def test_a_default_of_none_is_read_back_as_it_was_shown() -> None:
    @tool(require_approval=True)
    def list_pages(
        limit: int = None,  # type: ignore[assignment]  # noqa: RUF013
        size: Annotated[int, Field(ge=1)] = None,  # type: ignore[assignment]  # noqa: RUF013
    ) -> None:
        """List pages."""

    shown = list_pages.dump_input(list_pages.parse({"size": 2}))
    assert shown == {"limit": None, "size": 2}
    assert list_pages.parse(shown) == shown
    with pytest.raises(ToolInputError, match="limit: Input should be a valid integer"):
        list_pages.parse({"limit": "few"})
    assert list_pages.spec().parameters["properties"]["limit"] == {"default": None, "type": "integer"}


def test_a_value_that_cannot_even_be_shown_is_named_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise KeyError("no")

    @tool(output=int)
    def ask() -> Any:
        """Ask."""

    with pytest.raises(ToolOutputError, match="got a Shy"):
        ask.dump(Shy())
