"""What spans say, what they keep to themselves, and that nobody has to look after them."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from helix_agents import Agent, Compaction, Executor, Image, Text, UserMessage, tool
from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.hooks import HookOrder
from helix_agents.domain.messages import AssistantMessage, ProviderCall, Thinking, ToolCall
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelEvent, ModelRequest, ModelSettings, ReplyDone
from helix_agents.testing.contracts.executor.stage import Gate
from helix_agents.tracing import OpenTelemetryHooks
from helix_agents.tracing.contents import SWITCH
from tests.tracing.measures import measuring, points_of
from tests.tracing.pictures import Forgetful, Pictures, tree


@tool
async def look(query: str) -> str:
    """Look something up."""
    return f"the page with sk-secret about {query}"


def writer(*script: Any, **fields: Any) -> AnyAgent:
    script = script or (call("look", {"query": "sk-query"}), "It is sk-reply.")
    return Agent(**{"name": "writer", "model": ScriptedModel(list(script)), "tools": [look], **fields})


async def hold(agent: AnyAgent, message: Any = "sk-question", **settings: Any) -> None:
    async with Executor.open("memory://", agents=[agent], **settings) as helix:
        await (await helix.execute(agent, message, "s-1", user_id="ann")).result()


class Paid:
    """A model with a provider, and a bill."""

    name = "anthropic:claude-x"

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        said = AssistantMessage(text="Hi.", stop_reason="tool_calls", model="claude-x-2026")
        yield ReplyDone(reply=said, usage=TokenCount(prompt=7, completion=3, cached=5, reasoning=2, total=10))


async def test_a_model_call_says_what_was_asked_of_whom_and_what_it_took(pictures: Pictures) -> None:
    settings = ModelSettings(temperature=0.2, top_p=0.9, max_output_tokens=100, stop_sequences=("END",), seed=4)
    agent = Agent(name="writer", model=Paid(), settings=settings)
    await hold(agent, hooks=OpenTelemetryHooks(tracer_provider=pictures.provider()))
    (span,) = [each for each in pictures.exporter.get_finished_spans() if each.name.startswith("chat")]
    assert (span.name, span.kind) == ("chat claude-x", trace.SpanKind.CLIENT)
    found = dict(span.attributes or {})
    assert found.pop("helix.run.id")
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.request.temperature": 0.2,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.seed": 4,
        "gen_ai.response.model": "claude-x-2026",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.agent.name": "writer",
        "gen_ai.conversation.id": "s-1",
        "helix.session.id": "s-1",
        "helix.run.attempt": 1,
        "helix.step": 1,
    }


async def test_a_handoff_is_a_span_and_what_follows_is_the_work_of_the_other_agent(pictures: Pictures) -> None:
    model = ScriptedModel([call("handoff__billing", {"reason": "sk-reason"}, id="hand"), "It is sk-reply."])
    billing = Agent(name="billing", description="Money.", model=model)
    desk = Agent(name="desk", model=model, handoffs=[billing])
    await hold(desk, hooks=OpenTelemetryHooks(tracer_provider=pictures.provider()))
    handoff, run = pictures.one("handoff billing"), pictures.one("invoke_agent billing")
    told = handoff.attributes
    assert (told["gen_ai.agent.name"], told["helix.handoff.to"], told["gen_ai.tool.call.id"]) == (
        "desk", "billing", "hand"
    )  # fmt: skip
    assert handoff.parent == run.span_id
    whose = [span.attributes["gen_ai.agent.name"] for span in pictures.named("chat scripted")]
    assert whose == ["desk", "billing"]
    assert "sk-" not in str([span.attributes for span in pictures.spans])


async def test_spans_of_ones_own_code_nest_in_the_call_they_are_made_in(pictures: Pictures) -> None:
    provider = pictures.provider()
    tracer = provider.get_tracer("mine")

    @tool
    async def query() -> str:
        """Ask a database."""
        with tracer.start_as_current_span("SELECT"):
            return "rows"

    @tool
    def read() -> str:
        """Read a file, on a thread."""
        with tracer.start_as_current_span("open file"):
            return "bytes"

    class Client(ScriptedModel):
        async def ask(self, request: ModelRequest) -> Any:
            with tracer.start_as_current_span("POST"):
                pass
            async for event in super().ask(request):
                yield event

    model = Client([reply(calls=[call("query"), call("read")]), call("query"), "Done."])
    agent = Agent(name="writer", model=model, tools=[query, read])
    await hold(agent, hooks=OpenTelemetryHooks(tracer_provider=provider))
    assert tree(pictures.spans) == [
        "invoke_agent writer",
        *["  chat scripted", "    POST"] * 3,
        *["  execute_tool query", "    SELECT"] * 2,
        "  execute_tool read",
        "    open file",
    ]


async def test_nothing_that_was_said_is_written_unless_it_is_asked_for(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=pictures.provider()))
    monkeypatch.setenv(SWITCH, "true")
    await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=pictures.provider(), capture_content=False))
    assert "sk-" not in str(pictures.spans)
    assert "ann" not in str(pictures.spans)
    await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=pictures.provider()))
    for said in ("sk-question", "sk-query", "sk-secret", "sk-reply"):
        assert said in str(pictures.spans)


async def test_what_was_said_is_written_as_the_conventions_have_it(pictures: Pictures) -> None:
    picture = UserMessage(content=(Text(text="What is it?"), Image(url="data:image/png;base64,AAAABBBB")))
    thought = AssistantMessage(
        text="Looking.",
        thinking=(Thinking(text="Hm."),),
        tool_calls=(ToolCall(id="c", name="look", arguments={"query": "x"}),),
        provider_calls=(ProviderCall(id="ws", name="web_search", result=["found"], thoughts_before=1),),
    )

    class Thinks(ScriptedModel):
        async def ask(self, request: ModelRequest) -> Any:
            if request.step == 1:
                yield ReplyDone(reply=thought)
            else:
                yield ReplyDone(reply=AssistantMessage(text="A wave."))

    agent = Agent(name="writer", model=Thinks([]), tools=[look], instructions="Be brief.")
    await hold(agent, picture, hooks=OpenTelemetryHooks(tracer_provider=pictures.provider(), capture_content=True))
    first, second = pictures.named("chat scripted")
    said = {name: json.loads(first.attributes[f"gen_ai.{name}"]) for name in ("input.messages", "output.messages")}
    (asked,) = said["input.messages"]
    assert asked["role"] == "user"
    assert asked["parts"][0] == {"type": "text", "content": "What is it?"}
    assert (asked["parts"][1]["type"], asked["parts"][1]["modality"]) == ("blob", "image")
    assert "AAAA" not in str(pictures.spans)
    (answer,) = said["output.messages"]
    assert answer["role"] == "assistant"
    kinds = ["reasoning", "tool_call", "tool_call_response", "text", "tool_call"]
    assert [part["type"] for part in answer["parts"]] == kinds
    assert answer["parts"][2] == {"type": "tool_call_response", "id": "ws", "response": ["found"]}
    assert answer["parts"][4]["arguments"] == {"query": "x"}
    assert json.loads(first.attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(first.attributes["gen_ai.tool.definitions"])[0]["name"] == "look"
    assert json.loads(second.attributes["gen_ai.input.messages"])[2]["parts"][0]["type"] == "tool_call_response"
    ran = pictures.one("execute_tool look").attributes
    assert json.loads(ran["gen_ai.tool.call.arguments"]) == {"query": "x"}
    assert ran["gen_ai.tool.call.result"] == "the page with sk-secret about x"
    top = pictures.one("invoke_agent writer").attributes
    assert json.loads(top["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "A wave."}]
    assert "What is it?" in top["gen_ai.input.messages"]


async def test_a_turn_that_was_steered_shows_all_that_was_said_in_it(pictures: Pictures) -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    agent = Agent(name="writer", model=ScriptedModel(["Hi.", call("work"), "Done."]), tools=[work])
    hooks = OpenTelemetryHooks(tracer_provider=pictures.provider(), capture_content=True)
    async with Executor.open("memory://", agents=[agent], hooks=hooks) as helix:
        await (await helix.execute(agent, "Hello", "s-1")).result()
        handle = await helix.execute(agent, "Go", "s-1")
        await gate.until_reached()
        await helix.execute(agent, "Quickly", "s-1", if_running="steer")
        gate.opened.set()
        await handle.result()
    asked = [json.loads(each.attributes["gen_ai.input.messages"]) for each in pictures.named("invoke_agent writer")]
    said = [[each["parts"][0]["content"] for each in turn] for turn in asked]
    assert said == [["Hello"], ["Go", "Quickly"]]


async def test_images_of_tools_are_told_without_their_bytes(pictures: Pictures) -> None:
    moon = Image.of(b"moon" * 100, "image/png")

    @tool
    async def see() -> list[str | Image]:
        """See."""
        return ["The moon:", moon]

    @tool(finish_with=True)
    async def draw() -> Image:
        """Draw."""
        return moon

    model = ScriptedModel([call("see"), call("draw")])
    agent = Agent(name="writer", model=model, tools=[see, draw], output=Image)
    await hold(agent, hooks=OpenTelemetryHooks(tracer_provider=pictures.provider(), capture_content=True))
    told = json.loads(pictures.one("execute_tool see").attributes["gen_ai.tool.call.result"])
    assert told[0] == {"type": "text", "content": "The moon:"}
    assert (told[1]["type"], told[1]["mime_type"]) == ("blob", "image/png")
    asked = json.loads(pictures.named("chat scripted")[1].attributes["gen_ai.input.messages"])
    assert asked[-1]["parts"][0]["response"] == told
    assert "[image: image/png" in pictures.one("invoke_agent writer").attributes["gen_ai.output.messages"]
    assert "base64" not in str(pictures.spans)


async def test_attributes_of_ones_own_stand_on_every_span(pictures: Pictures) -> None:
    hooks = OpenTelemetryHooks(
        tracer_provider=pictures.provider(), attributes=lambda ctx: {"user.id": ctx.user_id or "", "tier": "gold"}
    )
    await hold(writer(), hooks=hooks)
    assert len(pictures.spans) == 4
    assert all((span.attributes["user.id"], span.attributes["tier"]) == ("ann", "gold") for span in pictures.spans)


async def test_who_asks_within_a_trace_of_its_own_and_the_run_point_to_each_other(pictures: Pictures) -> None:
    provider = pictures.provider()
    child = Agent(name="child", model=ScriptedModel(["Hi."]), description="child")
    agent = writer(call("subagent__child", {"message": "go"}), "Done.", tools=[child.as_tool()])
    with provider.get_tracer("web").start_as_current_span("POST /chat"):
        await hold(agent, hooks=OpenTelemetryHooks(tracer_provider=provider))
    request, run = pictures.one("POST /chat"), pictures.one("invoke_agent writer")
    assert request.trace_id != run.trace_id
    assert run.parent is None
    assert run.links == [(request.trace_id, request.span_id, "caller")]
    assert request.links == [(run.trace_id, run.span_id, "run")]
    assert pictures.one("invoke_agent child").links == []


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_a_trace_is_sampled_as_a_whole_by_the_sampler_of_the_program(pictures: Pictures, share: float) -> None:
    provider = pictures.provider(sampler=ParentBased(TraceIdRatioBased(share)))
    child = Agent(name="child", model=ScriptedModel(lambda _: "Hi."), description="child")
    script = ScriptedModel(lambda request: "Done." if request.step > 1 else call("subagent__child", {"message": "go"}))
    agent = Agent(name="writer", model=script, tools=[child.as_tool()])
    hooks = OpenTelemetryHooks(tracer_provider=provider)
    async with Executor.open("memory://", agents=[agent], hooks=hooks) as helix:
        for number in range(24):
            await (await helix.execute(agent, "Hi", f"s-{number}")).result()
    traces: dict[int, list[str]] = {}
    for span in pictures.spans:
        traces.setdefault(span.trace_id, []).append(span.name)
    assert all(len(names) == 6 for names in traces.values())
    assert len(traces) in {0.0: [0], 0.5: range(1, 24), 1.0: [24]}[share]


async def test_a_program_without_a_provider_or_that_records_nothing_runs_as_before(pictures: Pictures) -> None:
    await hold(writer(), hooks=OpenTelemetryHooks())
    await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=trace.NoOpTracerProvider()))
    await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=pictures.provider(sampler=ALWAYS_OFF)))
    assert pictures.spans == []


async def test_a_provider_that_is_set_later_is_found(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, hooks = writer("One.", "Two."), OpenTelemetryHooks()
    async with Executor.open("memory://", agents=[agent], hooks=hooks) as helix:
        await (await helix.execute(agent, "Hi", "s-1")).result()
        provider = pictures.provider()
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        await (await helix.execute(agent, "Hi", "s-1")).result()
    assert [span.attributes.get("helix.run.turn") for span in pictures.spans] == [None, 2]


async def test_an_sdk_that_is_switched_off_by_the_environment_is_no_complaint(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with caplog.at_level(logging.WARNING):
        await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=pictures.provider()))
    assert (pictures.spans, caplog.records) == ([], [])


async def test_a_tracer_that_is_not_the_sdks_is_used_as_far_as_it_goes(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[str] = []

    class OtherTracer(trace.NoOpTracer):
        def start_span(self, name: str, *arguments: Any, **settings: Any) -> trace.Span:
            begun.append(name)
            return super().start_span(name, *arguments, **settings)

    class OtherProvider(trace.TracerProvider):
        def get_tracer(self, *arguments: Any, **settings: Any) -> trace.Tracer:
            return OtherTracer()

    with caplog.at_level(logging.WARNING, "helix_agents"):
        await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=OtherProvider()))
    assert sorted(begun) == ["chat scripted", "chat scripted", "execute_tool look", "invoke_agent writer"]
    assert [getattr(record, "event", "") for record in caplog.records] == ["tracing.ids_not_chosen"]


async def test_a_wrapped_tracer_of_the_sdk_is_found(pictures: Pictures) -> None:
    inner = pictures.provider()

    class Wrapper(trace.Tracer):
        def __init__(self, tracer: trace.Tracer) -> None:
            self.tracer = tracer

        def start_span(self, *arguments: Any, **settings: Any) -> trace.Span:
            return self.tracer.start_span(*arguments, **settings)

        def start_as_current_span(self, *arguments: Any, **settings: Any) -> Any:
            return self.tracer.start_as_current_span(*arguments, **settings)

    class Wrapping(trace.TracerProvider):
        def get_tracer(self, *arguments: Any, **settings: Any) -> trace.Tracer:
            return Wrapper(inner.get_tracer(*arguments, **settings))

    await hold(writer(), hooks=OpenTelemetryHooks(tracer_provider=Wrapping()))
    assert len(tree(pictures.spans)) == 4


async def test_a_processor_that_breaks_does_not_hurt_a_run() -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: Span, parent_context: Any = None) -> None:
            if span.name.startswith("execute_tool"):
                raise OSError("the disk is full")

        def on_end(self, span: ReadableSpan) -> None:
            raise OSError("the collector is gone")

    provider = TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
    provider.add_span_processor(Broken())
    agent = writer()
    async with Executor.open("memory://", agents=[agent], hooks=OpenTelemetryHooks(tracer_provider=provider)) as helix:
        assert await (await helix.execute(agent, "Hi", "s-1")).output() == "It is sk-reply."
    assert not trace.get_current_span().get_span_context().is_valid


async def test_tokens_that_nobody_counted_are_not_told_as_none(pictures: Pictures) -> None:
    class Free(Paid):
        async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            yield ReplyDone(reply=AssistantMessage(text="Hi."))

    reader, hooks = measuring(tracer_provider=pictures.provider())
    await hold(Agent(name="writer", model=Free()), hooks=hooks)
    assert not points_of(reader, "gen_ai.client.token.usage")
    assert len(points_of(reader, "gen_ai.client.operation.duration")) == 1
    assert not [name for name in pictures.one("chat claude-x").attributes if name.startswith("gen_ai.usage")]


def test_nothing_happens_per_token() -> None:
    order = HookOrder([OpenTelemetryHooks()])
    assert not any(order.wants(name) for name in ("on_text_delta", "on_thinking", "on_state_change", "on_message"))


def test_the_forgetful_twin_hears_all_that_tracing_hears(pictures: Pictures) -> None:
    twin = HookOrder([Forgetful(pictures)])
    assert all(twin.wants(name) for name in ("around_tool", "on_agent_complete", "on_tool_unsettled"))


def test_who_lacks_the_extra_is_told_its_name() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None\nimport helix_agents.tracing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'helix-agents[tracing]'" in done.stderr


async def test_a_summary_is_a_span_of_the_model_that_wrote_it(pictures: Pictures) -> None:
    short = ScriptedModel(lambda _: "In short.", name="summariser")
    agent = writer(compaction=Compaction(above_tokens=40, keep_tokens=0, model=short))
    await hold(agent, "Tides. " * 40, hooks=OpenTelemetryHooks(tracer_provider=pictures.provider()))
    expected = ["  chat scripted", "  chat scripted", "  chat summariser", "  execute_tool look"]
    assert sorted(tree(pictures.spans)[1:]) == expected
    [summary] = pictures.named("chat summariser")
    assert summary.attributes["helix.purpose"] == "summary"
    assert summary.attributes["gen_ai.usage.output_tokens"] > 0


async def test_a_run_that_died_and_was_not_gone_on_with_before_its_session_expired_is_a_span_that_failed(
    pictures: Pictures,
) -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    agent = writer(call("wait"), tools=[wait])
    hooks = OpenTelemetryHooks(tracer_provider=pictures.provider())
    async with await open_backend("memory://expired-run") as parts, asyncio.timeout(20):
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**stores, janitor_seconds=None, grace=0.0) as dying:
            await dying.execute(agent, "Go", "s-1")
            await begun.wait()
        session = await parts.state.load_state("s-1")
        await parts.state.save_state("s-1", replace(session, expires_at=1))
        async with Executor(**stores, janitor_seconds=None, hooks=hooks) as helix:
            for expired in (1, 0):
                assert (await helix.sweep()).expired_sessions == expired
    assert tree(pictures.spans) == ["invoke_agent writer (session_expired)"]
