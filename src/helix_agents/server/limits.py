"""The limits of a server. Every limit has a name and a default."""

from helix_agents.agent.choices import check_whole
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import MAX_ID_LENGTH
from helix_agents.domain.records import Record


class ServerLimits(Record):
    """The limits of one server instance.

    Bodies: their size, how deeply their JSON nests, and how long they may take to arrive. Ids: their length; the
    store's own limit also applies. Streams: how many are open in total and for one user, and how long a reader may
    take no byte before it is disconnected. Runs: how many one user has running, across all instances. This holds as
    long as the instances that start a run of one user at the same moment are no more than half of that number.
    Schedules: how many one user may set over HTTP; 0 for none.
    """

    body_bytes: int = 1_048_576
    json_depth: int = 64
    body_seconds: float = 10.0
    id_characters: int = MAX_ID_LENGTH
    open_streams: int = 1_000
    open_streams_per_user: int = 100
    running_runs_per_user: int = 20
    schedules_per_user: int = 20
    stalled_reader_seconds: float = 60.0
    keep_alive_seconds: float = 15.0
    retry_after_seconds: int = 2

    def __post_init__(self) -> None:
        for name in ("body_bytes", "json_depth", "id_characters"):
            check_whole("ServerLimits", name, getattr(self, name), 1)
        counts = ("open_streams", "open_streams_per_user", "running_runs_per_user", "schedules_per_user")
        for name in (*counts, "retry_after_seconds"):
            check_whole("ServerLimits", name, getattr(self, name), 0)
        for name in ("body_seconds", "stalled_reader_seconds", "keep_alive_seconds"):
            value: object = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise DefinitionError(
                    "ServerLimits", f'{name}={value!r} has to be a number of seconds above 0; float("inf") is forever.'
                )
