"""When the model sees a summary in place of the oldest part of a conversation, and which model writes it."""

from dataclasses import dataclass

from helix_agents.agent.choices import check_text, check_whole
from helix_agents.agent.model_settings import check_settings_of_errand
from helix_agents.domain.errors import DefinitionError
from helix_agents.ports.llm import LLMAdapter, ModelSettings

SUMMARISE = """\
You are given the earlier part of a conversation between a user and an assistant who uses tools. The assistant will go
on without it and with nothing but your summary. Write down what it has to know: what the user wants, and every wish and
limit they gave; what was decided, and why; what was done with which tools, and what came of it; names, numbers, ids,
paths and addresses exactly as they are; what failed; what is still open. Add nothing that is not there, do not answer
the user, and do not go on with the conversation."""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Lets a conversation grow beyond what its model can read: `Agent(compaction=Compaction(above_tokens=100_000))`.

    Before a step whose messages would exceed `above_tokens`, or that the model rejects as too long, the oldest messages
    are summarised, and the model sees the summary in their place. The store keeps every message and adds the summary
    among them, so a rewind or a branch to an earlier point shows the full messages again. A summary is made once and
    counted in the usage. If it cannot be made, the run continues without it.

    Args:
        above_tokens: Summarise when the messages have more tokens than this. Counted from the usage that the provider
            reported with the last reply; if it reported none, four bytes count as one token.
        keep_tokens: About how many tokens of the latest messages are kept as they are. Defaults to a quarter of
            `above_tokens`. The last exchange is always kept, and a call is kept together with its result.
        model: The model that writes the summary, by name or as an adapter. Defaults to the agent's model.
        settings: How that model should answer. Defaults to the agent's settings if the model is the agent's own.
        instructions: The prompt for the summary.

    Raises:
        DefinitionError: the settings could not work; the message says why.
    """

    above_tokens: int
    keep_tokens: int | None = None
    model: str | LLMAdapter | None = None
    settings: ModelSettings | None = None
    instructions: str = SUMMARISE

    def __post_init__(self) -> None:
        check_whole("Compaction", "above_tokens", self.above_tokens, 1)
        if self.keep_tokens is not None:
            check_whole(
                "Compaction", "keep_tokens", self.keep_tokens, 0, other="; None means a quarter of above_tokens"
            )
            if self.keep_tokens >= self.above_tokens:
                problem = f"keep_tokens={self.keep_tokens} leaves nothing to summarise above {self.above_tokens}."
                raise DefinitionError("Compaction", problem)
        check_text("Compaction", "instructions", self.instructions)
        check_settings_of_errand("Compaction", self.settings)

    @property
    def kept(self) -> int:
        """About how many tokens of the latest messages are kept as they are."""
        return self.above_tokens // 4 if self.keep_tokens is None else self.keep_tokens
