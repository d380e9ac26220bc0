"""How a process speaks to Temporal, and how patient its workflows are."""

from dataclasses import dataclass

DEFAULT_ADDRESS = "127.0.0.1:7233"


@dataclass(frozen=True, kw_only=True)
class TemporalOptions:
    """Settings of the runtime; times are in seconds.

    A worker that gave no sign for `heartbeat_seconds` is taken for dead, and so is one that kept a workflow task or a
    workflow's own queue for `task_seconds` or `sticky_seconds`. A tool without a timeout may take `tool_seconds`, an
    effect that is not a tool `effect_seconds`. A workflow whose history has `history_events` goes on in a fresh one.
    """

    heartbeat_seconds: float = 20.0
    task_seconds: float = 10.0
    sticky_seconds: float = 10.0
    tool_seconds: float = 600.0
    effect_seconds: float = 3600.0
    history_events: int = 2_000
    max_effects: int = 200
    max_short_effects: int = 200
