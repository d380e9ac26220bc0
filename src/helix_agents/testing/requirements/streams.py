"""What every stream manager has to guarantee."""

from helix_agents.testing.requirements.registry import promised_by, requirements

_NUMBERS = promised_by(
    "sequence numbers",
    {
        "numbers.from-one-without-gaps": "Sequence numbers start at 1 and are assigned without gaps, whoever writes.",
        "numbers.never-reused": "A number is never given twice, whatever was discarded, truncated, pruned or ended.",
        "numbers.cursor-is-exact": "Reading everything after a number neither loses nor repeats a chunk.",
        "numbers.what-is-gone-is-named": "A reader learns about chunks it cannot have, through step_discarded or "
        "truncated.",
        "numbers.foreign-cursor-is-named": "A cursor that this stream never reached is answered with stream_resync "
        "and then with everything there is.",
        "numbers.like-the-reference": "After any sequence of operations the manager shows the same as the reference.",
    },
)

_WRITING = promised_by(
    "writing",
    {
        "writing.first-writer-creates": "The first writer creates the stream.",
        "writing.chunks-round-trip": "Every type of chunk comes back with every field as it was written.",
        "writing.chunks-are-copies": "What a caller does to a chunk's data afterwards does not change the stream.",
        "writing.time-is-stamped": "A chunk without a time gets the time at which it was accepted.",
        "writing.in-order": "Chunks are stored in the order in which they were written.",
        "writing.close-keeps-the-stream": "Closing a writer stores what it accepted and leaves the stream as it is.",
        "writing.never-waits": "A write returns while the store is still busy.",
        "writing.pieces-join": "Pieces of one text that wait for the store together become one chunk; nothing is lost.",
        "writing.flushes-by-time": "A chunk is stored soon without an explicit flush.",
        "writing.flushes-by-count": "Many chunks are stored at once, without waiting for the interval.",
        "writing.flushes-by-size": "Large chunks are stored at once, without waiting for the interval.",
        "writing.few-flushes": "1,000 deltas over one second cost at most 45 flushes.",
        "writing.oversized-refused": "A chunk over the limit is refused before it takes a number.",
        "writing.flush-is-atomic": "A connection lost at any statement of a flush leaves all of its chunks or none.",
        "writing.flush-is-repeatable": "A flush whose reply was lost is stored once, however often it is sent.",
        "writing.rides-in-the-commit": "Chunks handed over to a step's commit are stored with it or not at all, under "
        "the number that the commit reports.",
        "writing.begins-with-the-start": "A run whose start says so is the writer of its stream from then on, and the "
        "stream is active; or neither happens.",
        "writing.ends-with-the-commit": "A commit that ends its run also ends the stream that its chunks belong to, "
        "after telling readers about the commit, or none of this happens; if the run continues, so does the stream.",
        "writing.last-with-the-end": "A writer's last chunks are stored with the end, failure or pause of its stream, "
        "or neither happens; repeating the call stores nothing twice.",
        "writing.last-is-checked": "Last chunks that are refused leave the stream as it was.",
        "writing.hand-over-in-order": "Chunks written before a hand-over come before the handed-over ones, and chunks "
        "written during it come after them.",
    },
)

_OWNERSHIP = promised_by(
    "ownership",
    {
        "ownership.newer-writer-wins": "A newer writer shuts out all earlier ones.",
        "ownership.handles-join": "Several handles of one writer, in any process, write in parallel until a newer "
        "writer shuts all of them out.",
        "ownership.later-turn-wins": "A run of an earlier turn can neither write to, nor end, nor take back a stream.",
        "ownership.later-attempt-wins": "An earlier attempt can neither write to, nor end, nor take back a stream.",
        "ownership.refusal-surfaces": "A refusal met in the background is raised by the next write, flush and close.",
        "ownership.rest-is-final": "The attempt that brought its stream to rest can no longer write to it.",
        "ownership.held-writer-loses": "A writer held at any statement of its flush while another takes over leaves "
        "no chunk among those of the other.",
    },
)
_OWNERSHIP_ACROSS_PROCESSES = promised_by(
    "ownership",
    {
        "ownership.one-writer-across-processes": "Of many processes that become the writer one can write, and the "
        "numbers of everything stored have no gap.",
        "numbers.exact-across-kills": "A reader that is killed and started again gets every number once, even while "
        "writers are killed.",
    },
    several_processes=True,
)

_STATUS = promised_by(
    "status",
    {
        "status.no-stream-no-reader": "A stream that does not exist has no reader, info, snapshot or chunks.",
        "status.history-then-live": "A reader gets what is there and then what comes.",
        "status.ended": "An ended stream reports how it ended, returns its history and ends its readers.",
        "status.first-end-stands": "Ending again changes nothing.",
        "status.failed": "A failed stream returns its history and then its typed error.",
        "status.paused": "A paused stream returns its history and ends its readers cleanly.",
        "status.resumed": "A resumed stream is active again; any other is left as it is.",
        "status.new-run-reactivates": "A new run makes a stream that came to rest active, and its readers continue.",
        "status.info": "The info contains status, run, counts and numbers.",
        "status.deleted": "A deleted stream is gone, its readers end and its writer is refused.",
        "status.closed": "A closed manager refuses work with a named error.",
    },
)

_READING = promised_by(
    "reading",
    {
        "reading.live": "A reader on another handle gets a chunk without waiting for its next poll.",
        "reading.from-other-loops": "Readers in other threads with their own event loops are woken as well.",
        "reading.waits-cheaply": "A waiting reader sends at most two statements a second.",
        "reading.harms-nobody": "A reader that does not read does not slow down the writer.",
        "reading.closes": "Closing a reader ends it, even while it waits.",
        "reading.many-chunks": "A long stream is delivered completely and in order.",
        "reading.by-step": "get_chunks_from_step returns the chunks of one run from a step on.",
        "reading.snapshot": "A snapshot is one consistent read of the stream and its chunks after a number.",
    },
)

_SHRINKING = promised_by(
    "shrinking",
    {
        "shrinking.cleanup-drops-later-steps": "cleanup_to_step drops a run's chunks of later steps and nothing else.",
        "shrinking.keeps-what-a-commit-answers-for": "Nothing is discarded at or below a number that is given with "
        "the step.",
        "shrinking.markers-stay": "Chunks about a run, rather than from it, are kept when a step is discarded.",
        "shrinking.readers-keep-their-place": "A live reader keeps its place when chunks are removed, and sees what "
        "survived.",
        "shrinking.repeat-discards": "A new writer of a step discards what an earlier writer of the run left of it.",
        "shrinking.max-chunks": "A stream never holds more than max_chunks; the oldest are removed.",
        "shrinking.prune-by-age": "prune drops the chunks of streams that came to rest long enough ago; no others.",
        "shrinking.paused-keeps-the-uncommitted": "prune leaves a paused stream the chunks that no committed step "
        "replaced.",
    },
)

_TENANTS = promised_by(
    "ids",
    {
        "tenants.apart": "A namespace sees nothing of another one, and may use the same ids.",
        "tenants.ids-are-data": "No stream id can reach another stream; an impossible id is refused on the way in.",
        "tenants.impossible-is-absent": "A lookup with an id that can never exist finds nothing, whatever the "
        "operation.",
    },
)

STREAMS = requirements(
    _NUMBERS, _WRITING, _OWNERSHIP, _OWNERSHIP_ACROSS_PROCESSES, _STATUS, _READING, _SHRINKING, _TENANTS
)
