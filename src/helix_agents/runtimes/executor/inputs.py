"""What a caller hands to an executor: nothing looks at the types of what user code gives, so it is looked at here."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.door import check_input
from helix_agents.domain.errors import InvalidInputError
from helix_agents.domain.ids import CheckpointId, check_id
from helix_agents.domain.messages import UserMessage

Input: TypeAlias = str | UserMessage | Sequence[UserMessage]
ResumeMode: TypeAlias = Literal["continue", "with_message", "from_checkpoint"]


def messages_of(given: Input, key: str | None = None) -> tuple[UserMessage, ...]:
    """The turn's messages; a key marks the last one, so that a repeated call is recognised.

    Raises:
        InvalidInputError: they are none.
    """
    if isinstance(given, str):
        messages = (UserMessage(content=given),)
    else:
        messages = tuple(given) if isinstance(given, Sequence) else (given,)
    for message in messages:
        check_input(message, UserMessage, "message", "give a text, a UserMessage(content=…), or a list of UserMessage")
    if key is None or not messages:
        return messages
    check_input(key, str, "idempotency key", "give a text")
    return (*messages[:-1], msgspec.structs.replace(messages[-1], id=key))


def tags_of(given: Sequence[str]) -> tuple[str, ...]:
    """The tags of a session.

    Raises:
        InvalidInputError: they are one text, whose letters would be taken for tags.
    """
    if isinstance(given, str):
        raise InvalidInputError("list of tags", f"it is the text {given[:80]!r}; give a list of texts")
    return tuple(given)


def check_resume(mode: ResumeMode, message: Input | None, checkpoint_id: CheckpointId | None) -> None:
    """Refuse what resume could only misunderstand.

    Raises:
        InvalidInputError: there is no such mode, or it needs something else than was given.
    """
    if mode not in get_args(ResumeMode):
        known = ", ".join(map(repr, get_args(ResumeMode)))
        raise InvalidInputError("mode", f"there is no {cast('object', mode)!r}, only {known}")
    if mode == "with_message" and message is None:
        raise InvalidInputError("mode", "'with_message' needs message=…")
    if mode != "from_checkpoint" and checkpoint_id is not None:
        raise InvalidInputError("checkpoint id", f"mode {mode!r} goes on from the end; say mode='from_checkpoint'")
    if mode == "from_checkpoint":
        if checkpoint_id is None:
            raise InvalidInputError("mode", "'from_checkpoint' needs checkpoint_id=…, or \"beginning\"")
        check_id(checkpoint_id, "checkpoint id")


def check_of_one_call(hooks: SomeHooks, model: object, *, works: bool) -> None:
    """Refuse what is given for one call where `works` says that another process drives the run: it would not get it.

    Raises:
        InvalidInputError: something was given.
    """
    if not works and not (hooks is None and model is None):
        what = "hooks and a model of one call live in this process, which drives no runs"
        raise InvalidInputError("argument", f"{what}; give them to the agent, or to a worker")
