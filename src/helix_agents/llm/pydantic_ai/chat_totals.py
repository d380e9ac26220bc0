"""Chat Completions from servers that tell with every piece of a reply what it has used so far."""

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.usage import RequestUsage


class TotalsOfChat(OpenAIChatModel):
    """A model whose usage is what its server said last: adding up what it says would count the prompt many times."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _LastTotal


class _LastTotal(OpenAIStreamedResponse):
    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        if reported:
            super()._add_usage(usage, reported=True, cumulative=True)
