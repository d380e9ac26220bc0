"""Structured log events under stable names.

The library installs no handler. Until an application configures logging, Python itself writes warnings and errors to
standard error. That default is wanted: an exception in a tool is otherwise reported only to the model, and silence
would hide the bug.
"""

import logging
from typing import Any

_logger = logging.getLogger("helix_agents")


def log_event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a named event; its fields appear in the text and as `extra`."""
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s %s", name, _text(fields), extra={"event": name, **_prefixed(fields)})


def log_exception(name: str, problem: BaseException, **fields: Any) -> None:
    """Log an event that an exception caused, with its traceback."""
    if _logger.isEnabledFor(logging.ERROR):
        _logger.error(
            "%s %s",
            name,
            _text(fields),
            exc_info=(type(problem), problem, problem.__traceback__),
            extra={"event": name, **_prefixed(fields)},
        )


def _text(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={value!r}" for key, value in fields.items())


def _prefixed(fields: dict[str, Any]) -> dict[str, Any]:
    # Names such as `name` and `args` are reserved by the log record itself.
    return {f"helix_{key}": value for key, value in fields.items()}
