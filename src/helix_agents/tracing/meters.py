"""What models use, how long things take and how runs end: the metrics of the GenAI conventions, and our own."""

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider
from opentelemetry.util.types import AttributeValue

from helix_agents.agent.context import RunInfo
from helix_agents.agent.hook_events import AfterLLMCallEvent, AfterToolEvent
from helix_agents.tracing.attributes import NOT_COUNTED, Attributes
from helix_agents.tracing.spans import SCOPE

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
# Runs and sub-agents may take hours, and turns may wait for days.
_LONG = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0)
_TOKENS = tuple(float(4**n) for n in range(14))


class Meters:
    """Measures what hooks report; a program without a meter provider pays nothing for it."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="How long a model took to answer.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens that a model read and wrote.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._runs = meter.create_histogram(
            "helix.run.duration",
            unit="s",
            description="How long a run took, from its start to how it ended.",
            explicit_bucket_boundaries_advisory=_LONG,
        )
        self._waits = meter.create_histogram(
            "helix.run.wait",
            unit="s",
            description="How long a run waited until a process drove it.",
            explicit_bucket_boundaries_advisory=_LONG,
        )
        self._tools = meter.create_histogram(
            "helix.tool.duration",
            unit="s",
            description="How long a function or a sub-agent worked for a call.",
            explicit_bucket_boundaries_advisory=_LONG,
        )
        self._suspended = meter.create_counter(
            "helix.tool.suspended",
            unit="{call}",
            description="Calls that a run left to be answered.",
        )

    def answered(self, nanoseconds: int, about: Attributes, event: AfterLLMCallEvent) -> None:
        """A model gave a reply."""
        said_by = event.reply.model
        told = about if said_by is None else {**about, "gen_ai.response.model": said_by.rpartition(":")[2]}
        self._duration.record(nanoseconds / 1e9, told)
        if event.usage != NOT_COUNTED:
            self._tokens.record(event.usage.prompt, {**told, "gen_ai.token.type": "input"})
            self._tokens.record(event.usage.completion, {**told, "gen_ai.token.type": "output"})

    def gave_no_answer(self, nanoseconds: int, about: Attributes, problem: str) -> None:
        """A model was asked but did not answer."""
        self._duration.record(nanoseconds / 1e9, {**about, "error.type": problem})

    def run_began(self, ctx: RunInfo, now_ms: int) -> None:
        """A run is driven for the first time."""
        if ctx.trace is not None and ctx.attempt == 1:
            since = ctx.trace.started_at if ctx.trace.queued_at is None else ctx.trace.queued_at
            self._waits.record(
                max(now_ms - since, 0) / 1000, {**_of(ctx), "helix.run.queued": ctx.trace.queued_at is not None}
            )

    def run_ended(self, ctx: RunInfo, status: str, duration_ms: int, problem: str | None = None) -> None:
        """A run is over, or waits for an answer."""
        about = {**_of(ctx), "helix.run.status": status}
        self._runs.record(max(duration_ms, 0) / 1000, about if problem is None else {**about, "error.type": problem})

    def call_done(self, ctx: RunInfo, event: AfterToolEvent) -> None:
        """A call has its result; how long a person or a client took is only in the usage."""
        if event.ran_by not in ("function", "agent"):
            return
        about = {**_of(ctx), "gen_ai.tool.name": event.tool_name, "helix.tool.ran_by": event.ran_by}
        if event.error:
            about["error.type"] = event.code or "tool_failed"
        self._tools.record(max(event.duration_ms, 0) / 1000, about)

    def call_waits(self, ctx: RunInfo, tool_name: str) -> None:
        """A run ends because a call waits for an answer."""
        self._suspended.add(1, {**_of(ctx), "gen_ai.tool.name": tool_name})


def _of(ctx: RunInfo) -> dict[str, AttributeValue]:
    return {"gen_ai.agent.name": ctx.agent}
