"""Where Temporal is and how it is spoken to, found as Temporal's own command line finds it."""

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
    Temporal's own file mean; else one on this machine. What is `given` under such a name goes before.

    Raises:
        DefinitionError: something of that cannot be read, or does not go together; says what.
    """
    # What is set to nothing is meant to be absent; an API key of that kind would switch TLS on.
    there = {name: value for name, value in os.environ.items() if name.startswith("TEMPORAL_") and value}
    there |= {name: value for name, value in (given or {}).items() if value}
    try:
        profile = ClientConfigProfile.load(override_env_vars=_with_file(there))
        found: dict[str, Any] = {**profile.to_client_connect_config()}
    except (OSError, RuntimeError, ValueError) as problem:
        raise DefinitionError("Temporal", f"how to reach it cannot be made out: {problem}.") from problem
    return {
        "address": found.pop("target_host", DEFAULT_ADDRESS),
        "temporal_namespace": found.pop("namespace", "default"),
        "client_settings": found,
    }


def _with_file(there: dict[str, str]) -> dict[str, str]:
    """Temporal takes a file that is not there for an empty one, also where it was named.

    Raises:
        OSError: it cannot be read.
    """
    if file := there.get("TEMPORAL_CONFIG_FILE"):
        os.close(os.open(file, os.O_RDONLY))
    return there
