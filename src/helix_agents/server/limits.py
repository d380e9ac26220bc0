"""How much one caller may ask of a server: every bound has a name and a default."""

from helix_agents.domain.ids import MAX_ID_LENGTH
from helix_agents.domain.records import Record


class ServerLimits(Record):
    """The bounds of one server instance.

    Bodies: their size, how deeply their JSON nests, how long they may take to arrive. Ids: their length; the store's
    own bound holds besides. Streams: how many are open in all and for one user, and how long a reader may take no
    byte before it is let go. Runs: how many of one user are going, on all instances together. That holds as
    long as no more instances than half of it begin a run of one user at the same moment.
    """

    body_bytes: int = 1_048_576
    json_depth: int = 64
    body_seconds: float = 10.0
    id_characters: int = MAX_ID_LENGTH
    open_streams: int = 1_000
    open_streams_per_user: int = 100
    running_runs_per_user: int = 20
    stalled_reader_seconds: float = 60.0
    keep_alive_seconds: float = 15.0
    retry_after_seconds: int = 2
