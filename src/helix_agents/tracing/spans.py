"""Spans under ids that were decided before the spans exist, so that any process can name the parent of its own.

A span is exported when it ends, and in one piece. A run may be started by one process, driven by others and ended by
yet another, so no process holds its span open: the process that sees the end creates it, with its start time, under the
id that all others have used as their parent.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    TracerProvider,
)
from opentelemetry.util.types import AttributeValue

from helix_agents.engine.log import log_event

SCOPE = "helix_agents"
_MOST_WRAPPERS = 4


class Place(NamedTuple):
    """A span by its ids, in hexadecimal digits; without a span, the top of its trace."""

    trace_id: str
    span_id: str | None = None


class _IdGenerator(Protocol):
    def generate_span_id(self) -> int: ...
    def generate_trace_id(self) -> int: ...


class _Sampling(Protocol):
    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, /, *, kind: SpanKind, links: Sequence[Link]
    ) -> Any: ...


class _SdkTracer(Protocol):
    """What a tracer of the SDK has beyond its API: the generator of its ids, and the sampler."""

    id_generator: _IdGenerator
    sampler: _Sampling


_wanted: ContextVar[tuple[int, int | None] | None] = ContextVar("helix_span_ids", default=None)


class _ChosenIds:
    """Gives a span the ids that were chosen for it, and all others the ids they would have had."""

    def __init__(self, others: _IdGenerator) -> None:
        self._others = others

    def generate_span_id(self) -> int:
        wanted = _wanted.get()
        return self._others.generate_span_id() if wanted is None or wanted[1] is None else wanted[1]

    def generate_trace_id(self) -> int:
        wanted = _wanted.get()
        return self._others.generate_trace_id() if wanted is None else wanted[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)


class Spans:
    """Creates spans in the traces of conversations, with the tracer of the program's provider."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._given = provider
        self._provider: TracerProvider | None = None
        self._tracer: Tracer = trace.NoOpTracer()
        self._is_off = True
        self._sdk: _SdkTracer | None = None

    @property
    def are_wanted(self) -> bool:
        """Whether the program has set up a provider by now."""
        provider = self._given or trace.get_tracer_provider()
        if provider is not self._provider:
            self._take(provider)
        return not self._is_off

    def start(
        self,
        name: str,
        *,
        below: Place,
        span_id: str | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue] | None = None,
        links: Sequence[Link] = (),
        start_time: int | None = None,
    ) -> Span:
        """Start a span below another one, which need not exist yet; under a chosen id, if one is given."""
        above = INVALID_SPAN if below.span_id is None else NonRecordingSpan(self.context_of(below))
        before = _wanted.set((int(below.trace_id, 16), None if span_id is None else int(span_id, 16)))
        try:
            return self._tracer.start_span(
                name,
                context=trace.set_span_in_context(above),
                kind=kind,
                attributes=attributes,
                links=links,
                start_time=start_time,
                record_exception=False,
                set_status_on_exception=False,
            )
        finally:
            _wanted.reset(before)

    def context_of(self, place: Place) -> SpanContext:
        """A span that some process creates, or has created, for spans below it or links to it."""
        trace_id = int(place.trace_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(trace_id) else TraceFlags.DEFAULT)
        return SpanContext(trace_id, int(place.span_id or "0", 16), is_remote=True, trace_flags=flags)

    def _is_sampled(self, trace_id: int) -> bool:
        """Whether the top of the trace is sampled: a sampler that goes by the trace's id decides the same in every
        process, and spans below follow it."""
        if self._sdk is None:
            return True
        result = self._sdk.sampler.should_sample(Context(), trace_id, "invoke_agent", kind=SpanKind.INTERNAL, links=())
        return bool(result.decision.is_sampled())

    def _take(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SCOPE)
        # An SDK that is switched off by the environment returns tracers of the API.
        self._is_off = isinstance(provider, trace.ProxyTracerProvider) or type(self._tracer) is trace.NoOpTracer
        self._sdk = None
        tracer: Any = self._tracer
        for _ in range(_MOST_WRAPPERS):
            if tracer is None or (hasattr(tracer, "id_generator") and hasattr(tracer, "sampler")):
                break
            # Some libraries wrap the SDK's tracer in their own.
            tracer = getattr(tracer, "tracer", None) or getattr(tracer, "_tracer", None)
        if tracer is not None and hasattr(tracer, "id_generator") and hasattr(tracer, "sampler"):
            self._sdk = cast("_SdkTracer", tracer)
            if not isinstance(self._sdk.id_generator, _ChosenIds):
                self._sdk.id_generator = _ChosenIds(self._sdk.id_generator)
        elif not self._is_off:
            # Spans of one conversation then share a trace, but their parents are not found.
            cure = "use the TracerProvider of opentelemetry-sdk"
            log_event("tracing.ids_not_chosen", logging.WARNING, provider=type(provider).__qualname__, cure=cure)


@contextmanager
def current(span: Span) -> Generator[None]:
    """While the block lasts, spans that others create are below this one; it ends with the block."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield
