"""Messages as programs read them."""

import pytest

from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.records import encode


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (UserMessage(content="Hello"), "user"),
        (AssistantMessage(text="Hello"), "assistant"),
        (ToolMessage(tool_call_id="call_1", tool_name="look"), "tool"),
    ],
)
def test_a_message_says_whose_it_is_as_its_json_does(message: Message, role: str) -> None:
    assert message.role == role
    assert f'"role":"{role}"' in encode(message).decode()
