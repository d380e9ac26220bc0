"""Where Temporal is and how to reach it, found in the same way as Temporal's own command line does."""

import os
from collections.abc import Mapping
from typing import Any, TypedDict

from temporalio.envconfig import ClientConfigProfile

from helix_agents.domain.errors import DefinitionError
from helix_agents.runtimes.temporal.options import DEFAULT_ADDRESS


class TemporalPlace(TypedDict):
    """What `TemporalAgentExecutor.open` takes to reach a server."""

    address: str
    temporal_namespace: str
    client_settings: Mapping[str, Any]


def find_temporal(given: Mapping[str, str | None] | None = None) -> TemporalPlace:
    """The server that `TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`, `TEMPORAL_TLS…` and the profile in
    Temporal's own file describe; by default one on this machine. Values in `given`, under the same names, take
    precedence.

    Raises:
        DefinitionError: a setting cannot be read, or settings contradict each other; the message says which.
    """
    # A variable that is set but empty counts as absent; an empty API key would switch TLS on.
    there = {name: value for name, value in os.environ.items() if name.startswith("TEMPORAL_") and value}
    there |= {name: value for name, value in (given or {}).items() if value}
    try:
        profile = ClientConfigProfile.load(override_env_vars=_with_file(there))
        found: dict[str, Any] = {**profile.to_client_connect_config()}
    except (OSError, RuntimeError, ValueError) as problem:
        raise DefinitionError("Temporal", f"its connection settings cannot be read: {problem}.") from problem
    return {
        "address": found.pop("target_host", DEFAULT_ADDRESS),
        "temporal_namespace": found.pop("namespace", "default"),
        "client_settings": found,
    }


def _with_file(there: dict[str, str]) -> dict[str, str]:
    """Temporal treats a missing file as an empty one, even if it was named explicitly. This raises instead.

    Raises:
        OSError: it cannot be read.
    """
    if file := there.get("TEMPORAL_CONFIG_FILE"):
        os.close(os.open(file, os.O_RDONLY))
    return there
