"""The message that a client holds after it has read the parts of a UI message stream."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from helix_agents.domain.records import decode_json
from helix_agents.server.chat.ui_parts import UIPart

UIMessage: TypeAlias = dict[str, Any]


def assistant_message(message_id: str, parts: Iterable[UIPart]) -> UIMessage:
    """Read an answer as a client does: the parts of one stream, from its start."""
    message: UIMessage = {"id": message_id, "role": "assistant", "parts": []}
    read_parts(message, parts)
    return message


def read_parts(message: UIMessage, parts: Iterable[UIPart]) -> None:
    """Read more parts into an existing message."""
    shown: list[UIPart] = message["parts"]
    blocks: dict[str, UIPart] = {}
    for part in parts:
        kind: str = part["type"]
        match kind.partition("-"):
            case _ if kind == "start":
                message["id"] = part.get("messageId", message["id"])
            case _ if kind == "start-step":
                shown.append({"type": "step-start"})
            case _ if kind == "reset-step":
                del shown[_step_begin(shown) :]
            case "text" | "reasoning" as block, _, "start":
                blocks[part["id"]] = {"type": block, "text": "", "state": "streaming"}
                shown.append(blocks[part["id"]])
            case "text" | "reasoning", _, "delta":
                blocks[part["id"]]["text"] += part["delta"]
            case "text" | "reasoning", _, "end":
                blocks.pop(part["id"])["state"] = "done"
            case "tool", _, what:
                _read_tool(shown, what, part)
            case "source", _, _:
                shown.append(part)
            case "data", _, _ if not part.get("transient"):
                _put_data(shown, part)
            case _:
                pass


def _step_begin(shown: list[UIPart]) -> int:
    return max((place for place, part in enumerate(shown) if part["type"] == "step-start"), default=-1) + 1


def _read_tool(shown: list[UIPart], what: str, part: UIPart) -> None:
    if what == "approval-response":
        _note_decision(shown, part)
        return
    if what.startswith("input"):
        here = shown[_step_begin(shown) :]
        tool = next((each for each in here if each.get("toolCallId") == part["toolCallId"]), None)
        if tool is None:
            tool = {"type": f"tool-{part['toolName']}", "toolCallId": part["toolCallId"]}
            if part.get("dynamic"):
                tool |= {"type": "dynamic-tool", "toolName": part["toolName"]}
            shown.append(tool)
        if part.get("providerExecuted"):
            tool["providerExecuted"] = True
    else:
        tool = next(each for each in reversed(shown) if each.get("toolCallId") == part["toolCallId"])
    match what:
        case "input-start":
            tool["state"] = "input-streaming"
        case "input-delta":
            tool.update(state="input-streaming", rawInput=tool.get("rawInput", "") + part["inputTextDelta"])
        case "input-available":
            tool.pop("rawInput", None)
            tool.update(state="input-available", input=part["input"])
        case "input-error":
            tool.update(state="output-error", rawInput=part["input"], errorText=part["errorText"])
        case "approval-request":
            tool.update(state="approval-requested", approval={"id": part["approvalId"]})
        case "output-available":
            if "rawInput" in tool:
                tool["input"] = decode_json(tool.pop("rawInput"))
            tool.update(state="output-available", output=part["output"])
        case "output-error":
            if "rawInput" in tool:
                tool["input"] = decode_json(tool.pop("rawInput"))
            tool.update(state="output-error", errorText=part["errorText"])
        case _:
            tool["state"] = "output-denied"


def _note_decision(shown: list[UIPart], part: UIPart) -> None:
    tool = next(each for each in shown if each.get("approval", {}).get("id") == part["approvalId"])
    said = {key: part[key] for key in ("approved", "reason") if key in part}
    tool.update(state="approval-responded", approval={**tool["approval"], **said})


def _put_data(shown: list[UIPart], part: UIPart) -> None:
    kept = {key: part[key] for key in ("type", "id", "data") if key in part}
    for place, earlier in enumerate(shown):
        if earlier["type"] == kept["type"] and "id" in kept and earlier.get("id") == kept["id"]:
            shown[place] = kept
            return
    shown.append(kept)
