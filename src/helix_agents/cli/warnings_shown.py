"""Showing on standard error what goes wrong beside the answer, for example in a hook."""

import logging


def show_warnings() -> None:
    """Write warnings and errors to standard error, unless the agents' own module set up logging."""
    if not logging.getLogger("helix_agents").handlers:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
