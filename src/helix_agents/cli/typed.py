"""Command lines that a person can type as they stand, where this command was typed."""

import os
import shlex


def typed(*words: str) -> str:
    """The words as a command line; through uv where uv started us, for then `helix` alone may not be found."""
    started_by_uv = "UV_RUN_RECURSION_DEPTH" in os.environ
    return shlex.join(("uv", "run", *words) if started_by_uv else words)
