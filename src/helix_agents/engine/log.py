"""Structured log events under stable names.

There is no handler of ours: until an application configures logging, Python itself writes warnings and errors to
standard error. Of a tool that raises only the model hears otherwise, so silence would hide its bugs.
"""

import logging
from typing import Any

_logger = logging.getLogger("helix_agents")


def log_event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event by name; the fields travel as `extra` and in the text."""
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
    # Names such as `name` and `args` belong to the log record itself.
    return {f"helix_{key}": value for key, value in fields.items()}
