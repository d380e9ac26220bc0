"""When an agent's model is shown a summary in place of the oldest part of a conversation, and who writes it."""

from dataclasses import dataclass

from helix_agents.agent.choices import check_text, check_whole
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

    Before a step whose messages would be more than `above_tokens`, or that the model refuses as too long, the oldest of
    them are summarised, and the model is shown the summary in their place. The store keeps every message, and the
    summary among them: a rewind or a branch to before it shows the whole again. It is made once, counted in the usage,
    and a run whose summary cannot be made goes on without it.

    Args:
        above_tokens: From how many tokens on the messages are too many. Counted from what the provider said of the
            last reply; where it said nothing, four bytes are taken for a token.
        keep_tokens: About how many tokens of the latest messages stay as they are; a quarter of `above_tokens` unless
            given. The last exchange always stays, and a call stays with its result.
        model: Who writes the summary, by name or as an adapter; the agent's own model unless given.
        settings: How that model should answer; those of the agent where it is the agent's own.
        instructions: What it is told to write.

    Raises:
        DefinitionError: it could not work; says why.
    """

    above_tokens: int
    keep_tokens: int | None = None
    model: str | LLMAdapter | None = None
    settings: ModelSettings | None = None
    instructions: str = SUMMARISE

    def __post_init__(self) -> None:
        check_whole("Compaction", "above_tokens", self.above_tokens, 1)
        if self.keep_tokens is not None:
            check_whole("Compaction", "keep_tokens", self.keep_tokens, 0, other="; None is a quarter of above_tokens")
            if self.keep_tokens >= self.above_tokens:
                problem = f"keep_tokens={self.keep_tokens} leaves nothing to summarise above {self.above_tokens}."
                raise DefinitionError("Compaction", problem)
        check_text("Compaction", "instructions", self.instructions)

    @property
    def kept(self) -> int:
        """About how many tokens of the latest messages stay as they are."""
        return self.above_tokens // 4 if self.keep_tokens is None else self.keep_tokens
