"""Errors of flows: Python functions that decide what an agent does next."""

from helix_agents.domain.errors.models import ModelError
from helix_agents.domain.errors.root import HelixError


class FlowFailedError(ModelError):
    """The function of a flow raised an exception."""

    code = "flow_failed"

    def __str__(self) -> str:
        return f"Flow {self.model!r} failed: {self.reason}"


class FlowInputError(ModelError):
    """The message that starts a flow is not what its function takes."""

    code = "flow_input_invalid"

    def __str__(self) -> str:
        return f"Flow {self.model!r} cannot start with this message: {self.reason}"


class FlowChangedError(ModelError):
    """The function of a flow no longer makes the calls that it made before."""

    code = "flow_changed"

    def __str__(self) -> str:
        return (
            f"Flow {self.model!r} is not what it was when this turn began: {self.reason}. If it was changed, deploy it "
            "as it was and retry the run, or send a new message. If not, something in it differs from time to time, "
            "such as a date, a random number or the order of a set: move that into a tool."
        )


class FlowStuckError(ModelError):
    """The function of a flow waits for something that is not one of its calls."""

    code = "flow_stuck"

    def __str__(self) -> str:
        return f"Flow {self.model!r} cannot go on: {self.reason}"


class CallFailedError(HelixError):
    """A call that a flow made has no result; the flow may catch this and do something else.

    `why` is the code of the tool's error, such as `tool_failed`, `tool_execution_failed` or `not_approved`, and
    `message` is what a model would have read.
    """

    code = "call_failed"
    tool: str
    why: str
    message: str

    def __str__(self) -> str:
        return f"{self.tool} failed ({self.why}): {self.message}"
