"""Spans under ids that were settled before they were made, so that any process can name the parent of its own.

A span is exported when it ends, and in one piece. A run may be begun by one process, worked on by others and ended by
yet another; so nobody holds its span open: whoever sees its end makes it, from its beginning on, under the id that
everybody who worked for it took for its parent.
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
    """A span by its ids, in hexadecimal digits; without a span it is the top of its trace."""

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
    """What a tracer of the SDK has beside its API: who draws its ids, and who decides what is recorded."""

    id_generator: _IdGenerator
    sampler: _Sampling


_wanted: ContextVar[tuple[int, int | None] | None] = ContextVar("helix_span_ids", default=None)


class _ChosenIds:
    """Gives a span the ids that were chosen for it, and all others what they would have had."""

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
    """Makes spans in the traces of conversations, with the tracer of whichever provider the program has."""

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
        """Begin a span below another one, which need not be there yet; under an id that was chosen, if one was."""
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
        """A span that some process makes, or has made, for those who are below it or point to it."""
        trace_id = int(place.trace_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(trace_id) else TraceFlags.DEFAULT)
        return SpanContext(trace_id, int(place.span_id or "0", 16), is_remote=True, trace_flags=flags)

    def _is_sampled(self, trace_id: int) -> bool:
        """What becomes of the top of the trace: a sampler that goes by the trace's id says the same in every process,
        and what is below follows it."""
        if self._sdk is None:
            return True
        result = self._sdk.sampler.should_sample(Context(), trace_id, "invoke_agent", kind=SpanKind.INTERNAL, links=())
        return bool(result.decision.is_sampled())

    def _take(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SCOPE)
        # An SDK that the environment switched off gives out tracers of the API.
        self._is_off = isinstance(provider, trace.ProxyTracerProvider) or type(self._tracer) is trace.NoOpTracer
        self._sdk = None
        tracer: Any = self._tracer
        for _ in range(_MOST_WRAPPERS):
            if tracer is None or (hasattr(tracer, "id_generator") and hasattr(tracer, "sampler")):
                break
            # Some libraries put a tracer of their own around the SDK's.
            tracer = getattr(tracer, "tracer", None) or getattr(tracer, "_tracer", None)
        if tracer is not None and hasattr(tracer, "id_generator") and hasattr(tracer, "sampler"):
            self._sdk = cast("_SdkTracer", tracer)
            if not isinstance(self._sdk.id_generator, _ChosenIds):
                self._sdk.id_generator = _ChosenIds(self._sdk.id_generator)
        elif not self._is_off:
            # Spans of one conversation share a trace then, but their parents are not found.
            cure = "use the TracerProvider of opentelemetry-sdk"
            log_event("tracing.ids_not_chosen", logging.WARNING, provider=type(provider).__qualname__, cure=cure)


@contextmanager
def current(span: Span) -> Generator[None]:
    """While the block lasts, spans that others make are below this one; it ends with the block."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield
