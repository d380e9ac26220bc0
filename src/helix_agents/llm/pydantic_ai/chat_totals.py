"""Chat Completions from servers that report the usage so far with every piece of a reply."""

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.usage import RequestUsage


class TotalsOfChat(OpenAIChatModel):
    """A model whose usage is what its server reported last: adding up the reports would count the prompt many times."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _LastTotal


class _LastTotal(OpenAIStreamedResponse):
    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        if reported:
            super()._add_usage(usage, reported=True, cumulative=True)
