"""Over the wire: what an exporter sends is what a collector understands."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.testing import call
from helix_agents.tracing import OpenTelemetryHooks


class Collector:
    """Takes what is sent to it by OTLP over HTTP; one that is broken refuses everything."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        self.broken = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.broken:
                    self.send_response(400)
                else:
                    collector.received.append(ExportTraceServiceRequest.FromString(body))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join(10)


@pytest.fixture
def provider(collector: Collector) -> Iterator[TracerProvider]:
    provider = TracerProvider(resource=Resource({"service.name": "tides"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=collector.url, timeout=5)))
    yield provider
    provider.shutdown()


@tool
async def look() -> str:
    """Look."""
    return "seen"


def watcher() -> Agent[Any, Any, Any]:
    return Agent(name="watcher", model=ScriptedModel([call("look"), "Done."]), tools=[look])


async def test_a_collector_receives_the_trace_of_a_session(collector: Collector, provider: TracerProvider) -> None:
    agent = watcher()
    async with Executor.open("memory://", agents=[agent], hooks=OpenTelemetryHooks(tracer_provider=provider)) as helix:
        await (await helix.execute(agent, "Look", "s-1")).result()
        session = await helix.sessions.get("s-1")
    assert await asyncio.to_thread(provider.force_flush)
    assert session.tracing_context is not None
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"invoke_agent watcher", "chat scripted", "execute_tool look"}
    assert {span.trace_id.hex() for span in collector.spans} == {session.tracing_context.trace_id}
    top = spans["invoke_agent watcher"]
    assert top.parent_span_id == b""
    assert {span.parent_span_id for span in collector.spans if span is not top} == {top.span_id}
    attributes = {each.key: each.value.string_value for each in top.attributes}
    assert attributes["gen_ai.conversation.id"] == "s-1"


async def test_a_collector_that_refuses_everything_does_not_hurt_a_run(
    collector: Collector, provider: TracerProvider
) -> None:
    collector.broken = True
    agent = watcher()
    async with Executor.open("memory://", agents=[agent], hooks=OpenTelemetryHooks(tracer_provider=provider)) as helix:
        assert await (await helix.execute(agent, "Look", "s-1")).output() == "Done."
    await asyncio.to_thread(provider.force_flush)
    assert collector.received == []
