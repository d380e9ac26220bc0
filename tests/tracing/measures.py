"""What was measured, by the real SDK: one line per point, with its attributes."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from helix_agents.tracing import OpenTelemetryHooks


def measuring(**settings: Any) -> tuple[InMemoryMetricReader, OpenTelemetryHooks]:
    """Hooks, and a reader of what they measure."""
    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader], resource=Resource.get_empty(), shutdown_on_exit=False)
    return reader, OpenTelemetryHooks(meter_provider=meters, **settings)


def points_of(reader: InMemoryMetricReader, metric: str) -> list[Any]:
    """The points of one metric, as they stand now."""
    data = reader.get_metrics_data()
    scopes = [] if data is None else [each for of in data.resource_metrics for each in of.scope_metrics]
    return [
        point for scope in scopes for each in scope.metrics if each.name == metric for point in each.data.data_points
    ]


def counted(reader: InMemoryMetricReader, metric: str, *names: str) -> dict[tuple[Any, ...], float]:
    """How often something was measured, by the attributes of these names."""
    found: dict[tuple[Any, ...], float] = {}
    for point in points_of(reader, metric):
        key = tuple(point.attributes.get(name) for name in names)
        found[key] = found.get(key, 0) + (point.count if hasattr(point, "count") else point.value)
    return found
