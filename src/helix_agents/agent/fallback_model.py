"""Several models as one: the reply comes from the first model that gives one."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from helix_agents.domain.errors import ContextTooLongError, DefinitionError, ModelError
from helix_agents.ports.llm import LLMAdapter, ModelEvent, ModelRequest, ReplyDone
from helix_agents.ports.models import open_model
from helix_agents.ports.provider_tools import ProviderTool, refusal_of


class FallbackModel(LLMAdapter):
    """Asks the next model if one gives no answer: `FallbackModel("anthropic:claude-sonnet-4-5", "openai:gpt-5")`.

    Each request starts with the first model again. Once a reply has started, no other model takes it over, because
    readers have already seen part of it: the reply fails, and the engine asks again from the beginning where that may
    help. Usage is counted under the name of the model that gave the reply.

    Args:
        models: By name or as adapters, in the order in which they are asked.

    Raises:
        DefinitionError: there are fewer than two models.
    """

    def __init__(self, *models: str | LLMAdapter) -> None:
        if len(models) < 2:
            raise DefinitionError("FallbackModel", f"give it two models or more, not {len(models)}.")
        self.models = models

    @property
    def name(self) -> str:
        """The name of the first model."""
        first = self.models[0]
        return first if isinstance(first, str) else first.name

    def opened(self, adapter_of: Callable[[str | LLMAdapter], LLMAdapter]) -> "FallbackModel":
        """The same models, opened by the caller, which also closes them."""
        return FallbackModel(*map(adapter_of, self.models))

    def refuse_provider_tools(self, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
        """Why one of the models cannot be used with these tools; None if each of them can, because each may answer."""
        opened = (open_model(each) if isinstance(each, str) else each for each in self.models)
        return next(filter(None, (refusal_of(each, tools, beside_tools=beside_tools) for each in opened)), None)

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply of the first model that gives one.

        Raises:
                ModelError: none does. Of several errors, it is the first that may pass, else one about length, else the
                last.
        """
        problems: list[ModelError] = []
        for each in self.models:
            model = open_model(each) if isinstance(each, str) else each
            has_begun = False
            try:
                async with aclosing(model.ask(request)) as events:
                    async for event in events:
                        has_begun = True
                        yield _signed(event, model.name)
                return
            except ModelError as problem:
                if has_begun:
                    raise
                problems.append(problem)
        raise _weightiest(problems)


def models_in(model: str | LLMAdapter) -> tuple[str | LLMAdapter, ...]:
    """The models that are asked if this one is given."""
    return model.models if isinstance(model, FallbackModel) else (model,)


def _signed(event: ModelEvent, name: str) -> ModelEvent:
    if not isinstance(event, ReplyDone) or event.answered_by is not None:
        return event
    return msgspec.structs.replace(event, answered_by=name)


def _weightiest(problems: list[ModelError]) -> ModelError:
    passing = (problem for problem in problems if problem.retryable)
    long = (problem for problem in problems if isinstance(problem, ContextTooLongError))
    return next(passing, None) or next(long, None) or problems[-1]
