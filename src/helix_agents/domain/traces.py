"""Ids of traces and spans that every process derives by itself, from names that the store knows."""

import re
from hashlib import sha256
from typing import NamedTuple

from helix_agents.domain.ids import RunId
from helix_agents.domain.sessions import SessionState

TRACE = "helix.trace"
"""Metadata of a session that another service delegated: its trace, and the span there that it belongs below."""

IN_TRACE = "x-helix-trace"
"""The header in which that service sends it; a service that does not know the header ignores it."""

_PLACE = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


class TracePlace(NamedTuple):
    """A span that something hangs below, in hexadecimal digits as in W3C Trace Context."""

    trace_id: str
    span_id: str

    def __str__(self) -> str:
        return f"{self.trace_id}-{self.span_id}"


def read_trace_place(told: str | None) -> TracePlace | None:
    """What another service said about its trace; None if it said nothing valid."""
    match = None if told is None else _PLACE.fullmatch(told)
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return TracePlace(match[1], match[2])


def trace_id_of(name: str) -> str:
    """32 hexadecimal digits; a name that is already a trace id is returned as is."""
    return name if _TRACE_ID.fullmatch(name) and int(name, 16) else _digest("trace", name)[:32]


def trace_of(session: SessionState) -> str:
    """The trace of a session and all sessions below it. A session that was copied in a store has no trace of its own
    yet: its trace is named after its root."""
    context = session.tracing_context
    return trace_id_of(session.root_session_id if context is None else context.trace_id)


def span_id_of_run(run_id: RunId) -> str:
    """The span of a run, the same for every attempt."""
    return _digest("run", run_id)[:16]


def span_id_of_errand(errand: str) -> str:
    """The span of a call that another agent works on."""
    return _digest("errand", errand)[:16]


def _digest(kind: str, name: str) -> str:
    return sha256(f"{kind}:{name}".encode()).hexdigest()
