"""`helix pending`: calls that wait for an answer, across all sessions, and the answers to them."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option, page_options, session_argument, store_option
from helix_agents.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("client_tool", "approval", "question")

call_argument = click.argument("tool_call_id", metavar="[CALL]", required=False)
agents_option = click.option(
    "--agents",
    metavar="MODULE:AGENTS",
    help="Check the answer against these agents' tools, and name them in the suggested command.",
)
reason_option = click.option("--reason", metavar="TEXT", help="A reason for the model.")


@click.group("pending")
def command() -> None:
    """List calls that wait for people, and answer them."""


@command.command("list")
@click.option("--session", "root_session_id", metavar="ID", help="Only calls in this session or below it.")
@click.option("--tool", "tool_name", metavar="NAME", help="Only calls of this tool.")
@click.option("--kind", type=click.Choice(KINDS), help="Only calls of this kind.")
@click.option("--user", "user_id", metavar="ID", help="Only sessions of this user.")
@page_options
@store_option
@json_option
@click.pass_obj
def list_command(output: Output, limit: int, offset: int, store_url: str, **where: str | None) -> None:
    """List waiting calls, newest first."""
    from helix_agents.cli.answering import list_pending

    asyncio.run(list_pending(output, store_url, offset=offset, limit=limit, **where))


@command.command("approve")
@session_argument
@call_argument
@click.option("--input", "edited", metavar="JSON", help="Approve with this input instead of the one shown.")
@reason_option
@agents_option
@store_option
@json_option
@click.pass_obj
def approve_command(
    output: Output,
    session_id: str,
    tool_call_id: str | None,
    edited: str | None,
    reason: str | None,
    agents: str | None,
    store_url: str,
) -> ExitCode:
    """Approve a call; it runs when the session is resumed.

    CALL may be left out if only one approval is waiting. The decision is stored once and for good: exit code 5 means
    that the call was decided before.

    If the list says unknown_outcome, the call was started and it is unknown whether it took effect: approving it lets
    it run a second time. If you know what happened, say so with `helix pending answer`.
    """
    from helix_agents.domain.pending import ApprovalAnswer

    given = None if edited is None else _json(edited, "--input", dict)
    decision = ApprovalAnswer(approved=True, reason=reason, edited_input=given)
    return _answer(output, store_url, session_id, tool_call_id, lambda _: decision, agents, wants_approval=True)


@command.command("deny")
@session_argument
@call_argument
@reason_option
@agents_option
@store_option
@json_option
@click.pass_obj
def deny_command(
    output: Output, session_id: str, tool_call_id: str | None, reason: str | None, agents: str | None, store_url: str
) -> ExitCode:
    """Deny a call; the model is told, and the tool does not run.

    For a call that was started, which the list shows as unknown_outcome, the model is told that its outcome is unknown.
    """
    from helix_agents.domain.pending import ApprovalAnswer

    decision = ApprovalAnswer(approved=False, reason=reason)
    return _answer(output, store_url, session_id, tool_call_id, lambda _: decision, agents, wants_approval=True)


@command.command("answer")
@session_argument
@click.argument("words", metavar="[CALL] ANSWER", nargs=-1)
@click.option("--as-json", is_flag=True, help="The answer is JSON, not text.")
@click.option("--error", metavar="TEXT", help="Why there is no answer; given instead of one.")
@agents_option
@store_option
@json_option
@click.pass_obj
def answer_command(
    output: Output,
    session_id: str,
    words: tuple[str, ...],
    as_json: bool,
    error: str | None,
    agents: str | None,
    store_url: str,
) -> ExitCode:
    """Answer a question, or give a client tool's result.

    CALL may be left out if only one such call is waiting. If a question offers options, the text of one is enough. For
    a call whose outcome is unknown, the answer is what happened: it becomes the result, and the call does not run
    again.
    """
    from helix_agents.cli.answering import option_or_text
    from helix_agents.domain.pending import PendingCall, ToolAnswer

    wanted = 0 if error is not None else 1
    if not wanted <= len(words) <= wanted + 1:
        raise click.UsageError(
            "Give an answer, or --error with the reason; name the call before it if several are waiting."
            if wanted
            else "--error replaces the answer; only a call may be given with it."
        )
    tool_call_id = words[0] if len(words) > wanted else None
    value = _json(words[-1], "ANSWER") if as_json and wanted else None

    def to_answer(call: PendingCall) -> ToolAnswer:
        if error is not None:
            return ToolAnswer(error=error)
        return ToolAnswer(result=value if as_json else option_or_text(call, words[-1]))

    return _answer(output, store_url, session_id, tool_call_id, to_answer, agents, wants_approval=False)


def _answer(
    output: Output,
    store_url: str,
    session_id: str,
    tool_call_id: str | None,
    to_answer: "Callable[[Any], Any]",
    agents: str | None,
    *,
    wants_approval: bool,
) -> ExitCode:
    from helix_agents.cli.answering import answer_call

    return asyncio.run(
        answer_call(output, store_url, session_id, tool_call_id, to_answer, agents, wants_approval=wants_approval)
    )


def _json(text: str, name: str, kind: type | None = None) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise click.UsageError(f"{name} is not JSON: {problem}") from problem
    if kind is not None and not isinstance(value, kind):
        raise click.UsageError(f"{name} has to be a JSON object.")
    return value
