"""Calls that wait, put to the person at the terminal one after another."""

import json
from typing import Any, cast

from helix_agents.cli.answering import option_or_text, options_of
from helix_agents.cli.chat_commands import command_in
from helix_agents.cli.driving import NOBODY_KNOWS, described
from helix_agents.cli.keyboard import Keyboard
from helix_agents.cli.loop_thread import LoopThread
from helix_agents.cli.output import Output
from helix_agents.domain.pending import (
    UNKNOWN_OUTCOME,
    Answer,
    AnswerAccepted,
    AnswerRefused,
    ApprovalAnswer,
    PendingCall,
    ToolAnswer,
)
from helix_agents.domain.records import JSON
from helix_agents.runtimes.in_process import Executor


def ask_person(
    output: Output, keyboard: Keyboard, loop: LoopThread, helix: Executor, session_id: str, call: PendingCall
) -> bool:
    """Ask until an answer fits, or the person wants to decide later; returns whether there is an answer."""
    _introduce(output, call)
    while True:
        answers = _approval(output, keyboard) if call.kind == "approval" else _result(output, keyboard, call)
        if answers is None:
            return False
        outcome = None
        for answer in answers:
            outcome = loop.run(helix.submit_tool_result(session_id, call.tool_call_id, answer))
            if not isinstance(outcome, AnswerRefused):
                break
        if isinstance(outcome, AnswerRefused):
            output.note(f"that answer does not fit: {outcome.reason}")
            continue
        if not isinstance(outcome, AnswerAccepted):
            output.note("this call was already answered")
        return True


def _introduce(output: Output, call: PendingCall) -> None:
    if call.kind == "question":
        output.say(f"? {call.input['question']}")
        for option in options_of(call):
            output.say(f"  - {option}")
        return
    output.say(f"? {described(call)}")
    if call.reason == UNKNOWN_OUTCOME:
        output.note(f"  {NOBODY_KNOWS}: yes to run it again, no to tell the model")


def _approval(output: Output, keyboard: Keyboard) -> list[Answer] | None:
    while True:
        said = keyboard.ask_now("approve? [y]es, [n]o, [e]dit, [l]ater> ").strip()
        word, _, rest = said.partition(" ")
        match word.lower(), rest.strip():
            case "y" | "yes", "":
                return [ApprovalAnswer(approved=True)]
            case "n" | "no", reason:
                return [ApprovalAnswer(approved=False, reason=reason or None)]
            case "e" | "edit", "":
                edited = _parsed(keyboard.ask_now("input as JSON> "))
                if isinstance(edited, dict):
                    return [ApprovalAnswer(approved=True, edited_input=cast("dict[str, JSON]", edited))]
                output.note("that is not a JSON object")
            case "l" | "later", "":
                return None
            case _:
                output.note("type y, n (optionally with a reason: n too early), e or l; nothing was decided yet")


def _result(output: Output, keyboard: Keyboard, call: PendingCall) -> list[Answer] | None:
    prompt = "answer> " if call.kind == "question" else "result, JSON or text; !reason if it failed; empty for later> "
    while (command := command_in(said := keyboard.ask_now(prompt).strip())) is not None:
        output.note(f'/{command} is a command; press Enter to decide later, then type it, or put the answer into "…"')
    if not said:
        return None
    if said.startswith("!"):
        return [ToolAnswer(error=said[1:].strip() or "it failed")]
    # A number may be meant as a number or as text: what the tool declares decides.
    parsed = _parsed(said)
    values: list[JSON] = [option_or_text(call, said)]
    if parsed is not None and parsed != values[0]:
        values.insert(0, parsed)
    return [ToolAnswer(result=value) for value in values]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
