"""Traces of conversations for OpenTelemetry: `Executor.open(url, agents=[…], hooks=OpenTelemetryHooks())`.

The extra `tracing` brings OpenTelemetry's API; which SDK, exporter and sampler are behind it is up to the program.
"""

from helix_agents.domain.errors import MissingExtraError

try:
    from helix_agents.tracing.hooks import OpenTelemetryHooks
except ModuleNotFoundError as missing:
    if missing.name is None or not missing.name.startswith("opentelemetry"):
        raise
    raise MissingExtraError("OpenTelemetryHooks", "tracing") from missing

__all__ = ["OpenTelemetryHooks"]
