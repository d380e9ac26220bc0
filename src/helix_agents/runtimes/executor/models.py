"""The models used by runs of this process: opened once, by name, and closed with the executor."""

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.fallback_model import FallbackModel
from helix_agents.agent.registry import AgentRegistry
from helix_agents.engine.log import log_exception
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.models import open_model


class Models:
    """Every model that was opened by its name here."""

    def __init__(self) -> None:
        self._opened: dict[str, LLMAdapter] = {}

    def adapter_of(self, model: str | LLMAdapter) -> LLMAdapter:
        """The adapter of a model. If the model falls back to others, those are opened too.

        Raises:
            UnknownModelError, MissingExtraError: it cannot be opened here.
        """
        if isinstance(model, str):
            adapter = self._opened.get(model)
            if adapter is None:
                adapter = self._opened[model] = open_model(model)
            return adapter
        return model.opened(self.adapter_of) if isinstance(model, FallbackModel) else model

    def open_all_of(self, agent: AnyAgent) -> None:
        """Open every model that an agent and its sub-agents use.

        Raises:
            UnknownModelError, MissingExtraError: one of them cannot be opened here.
            DefinitionError: a model's provider does not run an agent's provider tools.
        """
        for each in AgentRegistry([agent]).everyone():
            for model in each.models:
                self.adapter_of(model)
            if each.provider_tools:
                each.check_runs_provider_tools(self.adapter_of(each.model))

    async def close(self) -> None:
        """Close all models. One that cannot be closed is logged, and the others are closed all the same."""
        for model in self._opened.values():
            close = getattr(model, "close", None)
            if close is None:
                continue
            try:
                await close()
            except Exception as problem:
                # Adapters are written by anyone, so anything may be raised.
                log_exception("model.not_closed", problem, model=model.name)
