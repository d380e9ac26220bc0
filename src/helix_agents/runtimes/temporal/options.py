"""How a process talks to Temporal, and how patient its workflows are."""

from dataclasses import dataclass

from helix_agents.agent.choices import check_seconds, check_whole

DEFAULT_ADDRESS = "127.0.0.1:7233"


@dataclass(frozen=True, kw_only=True)
class TemporalOptions:
    """Settings of the Temporal runtime; times are in seconds.

    A worker that gave no sign of life for `heartbeat_seconds` counts as dead, and so does one that held a workflow task
    for `task_seconds` or a workflow's own queue for `sticky_seconds`. A tool without a timeout may take `tool_seconds`,
    any other effect `effect_seconds`. A workflow whose history has `history_events` events continues in a fresh one. A
    process does up to `max_effects` effects at once, and `max_short_effects` of those that only read and write the
    store.

    Raises:
        DefinitionError: a setting is not a number that could be followed.
    """

    heartbeat_seconds: float = 20.0
    task_seconds: float = 10.0
    sticky_seconds: float = 10.0
    tool_seconds: float = 600.0
    effect_seconds: float = 3600.0
    history_events: int = 2_000
    max_effects: int = 200
    max_short_effects: int = 200

    def __post_init__(self) -> None:
        for name in ("heartbeat_seconds", "task_seconds", "sticky_seconds", "tool_seconds", "effect_seconds"):
            check_seconds("TemporalOptions", name, getattr(self, name))
        for name in ("history_events", "max_effects", "max_short_effects"):
            check_whole("TemporalOptions", name, getattr(self, name), 1)
