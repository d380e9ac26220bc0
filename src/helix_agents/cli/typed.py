"""Command lines that a person can type as is, wherever this command was typed."""

import os
import shlex
from importlib.util import find_spec


def typed(*words: str) -> str:
    """The words as a command line; through uv if uv started us, because then `helix` alone may not be found."""
    if "UV_RUN_RECURSION_DEPTH" not in os.environ:
        return shlex.join(words)
    # If the development tools are not installed, uv would install them now.
    return shlex.join(("uv", "run", *(() if find_spec("pytest") else ("--no-dev",)), *words))
