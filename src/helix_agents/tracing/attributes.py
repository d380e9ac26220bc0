"""OpenTelemetry's GenAI conventions for what happens in a run; attributes that they do not define are `helix.…`."""

from opentelemetry.util.types import AttributeValue

from helix_agents.agent.context import RunInfo, RunTrace
from helix_agents.agent.hook_events import AfterLLMCallEvent
from helix_agents.domain.usage import TokenCount
from helix_agents.ports.llm import ModelSettings

_PROVIDERS = {
    "openai-chat": "openai",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "mistral": "mistral_ai",
}
_FINISH_REASONS = {"tool_calls": "tool_call"}

Attributes = dict[str, AttributeValue]

NOT_COUNTED = TokenCount()
"""What an adapter reports if its provider counts nothing."""


def of_run(ctx: RunInfo, told: RunTrace) -> Attributes:
    """The attributes of every span: which conversation, whose work, and which attempt."""
    return {
        "gen_ai.agent.name": ctx.agent,
        "gen_ai.conversation.id": told.root_session_id,
        "helix.session.id": ctx.session_id,
        "helix.run.id": ctx.run_id,
        "helix.run.attempt": ctx.attempt,
    }


def of_model(name: str) -> Attributes:
    """A model by its name, which is `provider:model`, or only the name of an adapter."""
    provider, _, model = name.partition(":")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model or name,
    }


def of_settings(settings: ModelSettings) -> Attributes:
    """How the model was asked to answer, as far as specified."""
    found: dict[str, AttributeValue | None] = {
        "gen_ai.request.temperature": settings.temperature,
        "gen_ai.request.top_p": settings.top_p,
        "gen_ai.request.max_tokens": settings.max_output_tokens,
        "gen_ai.request.seed": settings.seed,
        "gen_ai.request.stop_sequences": settings.stop_sequences or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def of_reply(event: AfterLLMCallEvent) -> Attributes:
    """What the model answered, without the content."""
    usage, reply = event.usage, event.reply
    found: Attributes = {}
    if usage != NOT_COUNTED:
        found = {"gen_ai.usage.input_tokens": usage.prompt, "gen_ai.usage.output_tokens": usage.completion}
    if usage.cached:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    if usage.reasoning:
        found["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning
    if reply.model is not None:
        found["gen_ai.response.model"] = reply.model.rpartition(":")[2]
    reason = finish_reason(event)
    if reason is not None:
        found["gen_ai.response.finish_reasons"] = (reason,)
    return found


def finish_reason(event: AfterLLMCallEvent) -> str | None:
    """Why the reply ended, in the conventions' word."""
    reason = event.reply.stop_reason
    return None if reason is None else _FINISH_REASONS.get(reason, reason)


def of_tool(name: str, call_id: str, ran_by: str) -> Attributes:
    """One call of a tool, without its input."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.type": "function",
        "helix.tool.ran_by": ran_by,
    }
