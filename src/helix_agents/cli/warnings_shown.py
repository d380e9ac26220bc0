"""What goes wrong beside the answer, such as in a hook, is told on standard error."""

import logging


def show_warnings() -> None:
    """Write warnings and errors to standard error, unless the agents' own module set up logging."""
    if not logging.getLogger("helix_agents").handlers:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
