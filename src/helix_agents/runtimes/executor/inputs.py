"""Checks what a caller passes to an executor: nothing else checks the types of what user code passes."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.agent_checks import broken_hook, is_adapter
from helix_agents.agent.budgets import check_budget
from helix_agents.agent.handoffs import circle_of
from helix_agents.agent.hooks import Hooks, SomeHooks, each_hooks
from helix_agents.domain.budgets import Budget
from helix_agents.domain.door import check_input
from helix_agents.domain.errors import InvalidInputError, UnstorableValueError
from helix_agents.domain.ids import CheckpointId, check_id
from helix_agents.domain.messages import UserMessage, is_blank
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.queued import MESSAGES_ONLY, was_taken_in
from helix_agents.domain.recollections import is_recollection
from helix_agents.domain.records import check_given
from helix_agents.domain.sessions import BranchPoint, SessionFilter
from helix_agents.domain.skills import SKILLS
from helix_agents.domain.summaries import summarised_by
from helix_agents.domain.usage import UsageFilter
from helix_agents.engine.requests.going_on import ResumeMode

Input: TypeAlias = str | UserMessage | Sequence[UserMessage]

IfRunning: TypeAlias = Literal["reject", "enqueue", "steer", "interrupt"]
"""What happens to a message that arrives while a turn is running."""


def messages_of(given: Input, key: str | None = None) -> tuple[UserMessage, ...]:
    """The turn's messages. A key marks the last one, so that a repeated call is recognised.

    Raises:
        InvalidInputError: there are no messages, or one is empty.
    """
    if isinstance(given, str):
        messages = (UserMessage(content=given),)
    else:
        # The parts of bytes are numbers; it is the whole that is wrong.
        is_list = isinstance(given, Sequence) and not isinstance(cast("object", given), bytes)
        messages = tuple(cast("Sequence[UserMessage]", given) if is_list else [cast("UserMessage", given)])
    for message in messages:
        check_input(message, UserMessage, "message", "give a text, a UserMessage(content=…), or a list of UserMessage")
        if summarised_by(message) is not None:
            raise InvalidInputError("message", "its metadata says that it is a summary, which only the engine writes")
        if message.metadata.get("helix") == SKILLS:
            raise InvalidInputError("message", "its metadata says that it lists skills, which only the engine does")
        if is_recollection(message):
            raise InvalidInputError("message", "its metadata says that it is a memory, which only the engine writes")
        if was_taken_in(message):
            raise InvalidInputError("message", "its metadata says that a run took it in, which only a run can do")
        if is_blank(message.content):
            raise InvalidInputError("message", "it is empty; give a text that is not blank, or a file")
    if key is None or not messages:
        return messages
    check_input(key, str, "idempotency key", "give a text")
    return (*messages[:-1], msgspec.structs.replace(messages[-1], id=key))


def tags_of(given: Sequence[str]) -> tuple[str, ...]:
    """The tags of a session.

    Raises:
        InvalidInputError: they are not texts, or are a single text, whose letters would be taken for tags.
    """
    if isinstance(given, str):
        raise InvalidInputError("list of tags", f"it is the text {given[:80]!r}; give a list of texts")
    tags = tuple(given)
    for tag in tags:
        check_input(tag, str, "tag", "give a text")
    return tags


def metadata_of(given: dict[str, str] | None) -> dict[str, str] | None:
    """A caller's notes about a session.

    Raises:
        InvalidInputError: it is not a dict of texts.
    """
    if given is not None:
        _check_kind(given, dict[str, str], "metadata", "give a dict of texts")
    return given


def user_of(given: str | None) -> str | None:
    """The user a session belongs to.

    Raises:
        InvalidInputError: it is not text.
    """
    if given is not None:
        check_input(given, str, "user id", "give a text")
    return given


def check_filter(given: object, kind: type[PendingFilter | SessionFilter | UsageFilter], example: str) -> None:
    """Reject a filter that could only fail or match nothing, such as the id of a session in its place.

    Raises:
        InvalidInputError: it is something else, or one of its conditions is of the wrong type.
    """
    if given is not None:
        check_input(given, kind, "filter", f"give {kind.__name__}({example})")


def branch_of(given: BranchPoint | None) -> BranchPoint | None:
    """Where a branch starts.

    Raises:
        InvalidInputError: it is something else.
        InvalidIdError: it names no session that could exist.
    """
    if isinstance(given, BranchPoint):
        check_id(given.from_session_id)
    if given is not None:
        cure = "give BranchPoint(from_session_id=…), with checkpoint_id=… for an earlier point"
        check_input(given, BranchPoint, "branch", cure)
    return given


def check_agent(given: object) -> None:
    """Reject anything that is not an agent.

    Raises:
        InvalidInputError: it is not an agent.
    """
    if not isinstance(given, Agent):
        raise InvalidInputError("agent", f"it is {given!r:.80}; give the Agent itself, not its name or its class")


def _check_kind(given: object, kind: Any, what: str, cure: str) -> None:
    try:
        check_given(given, kind, what)
    except UnstorableValueError as problem:
        raise InvalidInputError(what, f"{problem.reason}; {cure}") from problem


def check_resume(mode: ResumeMode, message: Input | None, checkpoint_id: CheckpointId | None) -> None:
    """Reject arguments that `resume` could only misunderstand.

    Raises:
        InvalidInputError: there is no such mode, or the mode needs other arguments.
    """
    if mode not in get_args(ResumeMode):
        known = ", ".join(map(repr, get_args(ResumeMode)))
        raise InvalidInputError("mode", f"{cast('object', mode)!r} is not one of {known}")
    if mode == "with_message" and message is None:
        raise InvalidInputError("mode", "'with_message' needs message=…")
    if mode != "from_checkpoint" and checkpoint_id is not None:
        raise InvalidInputError("checkpoint id", f"mode {mode!r} continues from the end; use mode='from_checkpoint'")
    if mode == "from_checkpoint":
        if checkpoint_id is None:
            raise InvalidInputError("mode", "'from_checkpoint' needs checkpoint_id=…, or \"beginning\"")
        check_id(checkpoint_id, "checkpoint id")


def check_if_running(given: IfRunning, hooks: SomeHooks, model: object, **of_the_turn: object) -> None:
    """Reject an unknown word, hooks or a model for a turn that another process may start, and what only a turn of its
    own can have for a message that another turn may take in.

    Raises:
        InvalidInputError: it cannot be done like this.
    """
    if given not in get_args(IfRunning):
        known = ", ".join(map(repr, get_args(IfRunning)))
        raise InvalidInputError("if_running", f"{cast('object', given)!r} is not one of {known}")
    if given in ("enqueue", "steer") and not (hooks is None and model is None):
        what = "hooks and a model of one call live in this process, but a queued turn may start in another"
        raise InvalidInputError("argument", f"{what}; give them to the agent")
    extra = [name for name, value in of_the_turn.items() if value is not None]
    if given == "steer" and extra:
        raise InvalidInputError(extra[0], MESSAGES_ONLY)


def check_budget_of_call(agent: AnyAgent, given: Budget | None) -> None:
    """Reject a budget for one call that could not be enforced.

    Raises:
        DefinitionError: it is not a budget, limits nothing, or is in dollars although a model has no price.
    """
    if given is not None:
        subject = f"A call of agent {agent.name!r}"
        check_budget(given, subject)
        # It holds for whoever has the conversation.
        for each in circle_of(agent).values():
            each.check_priced(given, subject)


def check_of_one_call(hooks: SomeHooks, model: object, *, works: bool) -> None:
    """Reject invalid hooks and an invalid model for one call, and any at all if `works` says that another process
    drives the run, which would not get them.

    Raises:
        InvalidInputError: something was given that cannot be used.
    """
    for each in each_hooks(hooks):
        if not isinstance(each, Hooks):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInputError("hook", f"it is {each!r:.80}; give an object of a class that derives from Hooks")
        if (problem := broken_hook(each)) is not None:
            raise InvalidInputError("hook", problem)
    if model is not None and not isinstance(model, str) and not is_adapter(model):
        raise InvalidInputError("model", f'it is {model!r:.80}; give a name like "openai:gpt-5", or a model adapter')
    if not works and not (hooks is None and model is None):
        what = "hooks and a model of one call live in this process, which drives no runs"
        raise InvalidInputError("argument", f"{what}; give them to the agent, or to a worker")
