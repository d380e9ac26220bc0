"""What was exported, as a picture: a line per span, indented below its parent."""

import json
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helix_agents.agent.context import RunInfo
from helix_agents.agent.hook_events import HookEvent
from helix_agents.agent.hooks import HOOK_NAMES, Hooks
from helix_agents.tracing import OpenTelemetryHooks


class Seen(NamedTuple):
    """One exported span, as far as tests look at it."""

    name: str
    trace_id: int
    span_id: int
    parent: int | None
    attributes: dict[str, Any]
    events: list[str]
    links: list[tuple[int, int, str]]
    status: str
    started: int
    ended: int


def seen(span: ReadableSpan) -> Seen:
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    return Seen(
        name=span.name,
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent=None if span.parent is None else span.parent.span_id,
        attributes={key: list(value) if isinstance(value, tuple) else value for key, value in span.attributes.items()}
        if span.attributes
        else {},
        events=[event.name for event in span.events],
        links=[
            (link.context.trace_id, link.context.span_id, str((link.attributes or {}).get("helix.link")))
            for link in span.links
        ],
        status=span.status.status_code.name,
        started=span.start_time,
        ended=span.end_time,
    )


class Pictures:
    """All spans that any process of a test exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def provider(self, **settings: Any) -> TracerProvider:
        provider = TracerProvider(shutdown_on_exit=False, resource=Resource.get_empty(), **settings)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        return provider

    @property
    def spans(self) -> list[Seen]:
        return [seen(span) for span in self.exporter.get_finished_spans()]

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Seen:
        (span,) = self.named(name)
        return span


def tree(spans: Iterable[Seen]) -> list[str]:
    """The picture of a trace: siblings in the order of their names, and nobody without a parent that is not a top."""
    spans = list(spans)
    known = {span.span_id for span in spans}
    assert len(known) == len(spans), "a span was exported twice"
    assert all(span.parent is None or span.parent in known for span in spans), "a span has lost its parent"
    assert len({span.trace_id for span in spans}) == 1, "there is more than one trace"
    return _below(None, spans, 0)


def _below(parent: int | None, spans: list[Seen], depth: int) -> list[str]:
    found: list[str] = []
    for span in sorted((each for each in spans if each.parent == parent), key=lambda each: (each.name, each.started)):
        marks = [*span.events, *([span.attributes["error.type"]] if span.status == "ERROR" else [])]
        found.append("  " * depth + span.name + (f" ({', '.join(marks)})" if marks else ""))
        found.extend(_below(span.span_id, spans, depth + 1))
    return found


class Forgetful(Hooks[Any, Any]):
    """Tracing of which nothing survives from one hook to the next: each is told to an object of its own, with a
    provider of its own, as in processes that share nothing."""

    def __init__(self, pictures: Pictures, **settings: Any) -> None:
        super().__init__()
        self._pictures = pictures
        self._settings = settings

    def _fresh(self) -> OpenTelemetryHooks:
        return OpenTelemetryHooks(tracer_provider=self._pictures.provider(), **self._settings)

    def _tell(self, ctx: RunInfo, event: HookEvent) -> Any:
        return getattr(self._fresh(), event.hook)(ctx, event)

    def _around(self, ctx: RunInfo, event: HookEvent) -> Generator[None, Any, None]:
        yield from getattr(self._fresh(), event.hook)(ctx, event)


for _name in HOOK_NAMES:
    if getattr(OpenTelemetryHooks, _name) is not getattr(Hooks, _name):
        setattr(Forgetful, _name, Forgetful._around if _name.startswith("around_") else Forgetful._tell)


class FileExporter(SpanExporter):
    """Writes each span into a file at once, for processes that die."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                file.write(json.dumps(seen(span)._asdict()) + "\n")
        return SpanExportResult.SUCCESS


def read_spans(path: Path) -> list[Seen]:
    return [Seen(**json.loads(line)) for line in path.read_text().splitlines()]
