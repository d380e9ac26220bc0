"""One OpenTelemetry trace for a conversation across two processes, with a person's approval in between.

Needs OpenTelemetry's SDK, which a clone has: `uv run python examples/trace_a_conversation.py`. Here the spans stay in
memory and are printed. With an OTLP exporter instead, they go to Jaeger, Langfuse, Logfire, Phoenix, Datadog, …
"""

import asyncio

from helix_agents import Agent, ApprovalAnswer, Executor, ScriptedModel, Suspended, tool
from helix_agents.testing import call, reply

try:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from helix_agents.tracing import OpenTelemetryHooks
except ImportError:
    needed = "pip install 'helix-agents[tracing]' opentelemetry-sdk"
    raise SystemExit(f"This example needs OpenTelemetry's SDK: {needed}") from None

STORE = "sqlite:///helix.db"
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)


@tool
async def search(query: str) -> str:
    """Search the archive."""
    with trace.get_tracer("archive").start_as_current_span("SELECT pages"):  # a database driver's span, for example
        return f"a page about {query}"


@tool(require_approval=True)
async def publish(title: str) -> str:
    """Publish a report."""
    return f"published {title}"


finding = ScriptedModel([call("search", {"query": "tides"}), "The moon pulls."])
researcher = Agent(name="researcher", model=finding, tools=[search], description="Finds facts.")
writing = ScriptedModel(
    [
        reply(calls=[call("subagent__researcher", {"message": "tides"}), call("search", {"query": "moons"})]),
        call("publish", {"title": "Tides"}),
        "It is out.",
    ]
)
writer = Agent(name="writer", model=writing, tools=[researcher.as_tool(), search, publish])


async def main() -> None:
    async with Executor.open(STORE, agents=[writer], hooks=OpenTelemetryHooks()) as helix:
        result = await (await helix.execute(writer, "Write about tides")).result()
    assert isinstance(result, Suspended)  # the process may end here; it holds no part of the trace

    async with Executor.open(STORE, agents=[writer], hooks=OpenTelemetryHooks()) as helix:
        await helix.submit_tool_result(result.session_id, result.pending[0].tool_call_id, ApprovalAnswer(approved=True))
        print(await (await helix.resume(writer, result.session_id)).output())
        context = (await helix.sessions.get(result.session_id)).tracing_context

    exported = spans.get_finished_spans()
    assert context is not None
    assert {f"{span.context.trace_id:032x}" for span in exported if span.context} == {context.trace_id}
    show(exported)


def show(exported: tuple[ReadableSpan, ...], parent: int | None = None, depth: int = 0) -> None:
    """Print spans below their parents, in the order in which they started."""
    for span in sorted(exported, key=lambda each: each.start_time or 0):
        above = None if span.parent is None else span.parent.span_id
        if above == parent and span.context is not None:
            print("  " * depth + " ".join([span.name, *(f"[{event.name}]" for event in span.events)]))
            show(exported, span.context.span_id, depth + 1)


asyncio.run(main())
