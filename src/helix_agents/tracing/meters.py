"""What models cost and how long they take, as the two histograms that the GenAI conventions name."""

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

from helix_agents.domain.usage import TokenCount
from helix_agents.tracing.attributes import NOT_COUNTED, Attributes
from helix_agents.tracing.spans import SCOPE

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**n) for n in range(14))


class Meters:
    """Counts model calls; a program that has set up no meters pays nothing for it."""

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

    def took(self, nanoseconds: int, about: Attributes, problem: str | None = None) -> None:
        self._duration.record(nanoseconds / 1e9, about if problem is None else {**about, "error.type": problem})

    def used(self, usage: TokenCount, about: Attributes) -> None:
        if usage == NOT_COUNTED:
            return
        self._tokens.record(usage.prompt, {**about, "gen_ai.token.type": "input"})
        self._tokens.record(usage.completion, {**about, "gen_ai.token.type": "output"})
