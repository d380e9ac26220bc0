"""What we ask of a reply, in Pydantic AI's format: settings, tools, instructions and the prompt cache."""

from typing import Any, cast

from pydantic_ai.messages import InstructionPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings, ToolChoice, ToolOrOutput
from pydantic_ai.tools import ToolDefinition

from helix_agents.domain.messages import AssistantMessage
from helix_agents.llm.pydantic_ai.provider_tools import native_tool
from helix_agents.llm.pydantic_ai.strictness import check_strict
from helix_agents.ports.llm import FINISH_TOOL, CacheTtl, ModelRequest, ToolSpec
from helix_agents.ports.provider_tools import CodeExecution, WebFetch, WebSearch

_NEED_A_TOOL = frozenset(("anthropic", "bedrock"))
"""Providers that refuse a history with tool calls if the request declares no tool."""

_NO_TOOL = ToolDefinition(
    name="no_tool",
    description="There is no tool to call at the moment.",
    parameters_json_schema={"type": "object", "properties": {}},
)


def parameters_of(name: str, request: ModelRequest, model: Model[Any]) -> ModelRequestParameters:
    """The instructions and the tools; the model decides which tool to call, if any.

    Raises:
        ModelRefusedError: a tool cannot be as strict as requested.
    """
    strict_output = request.settings.strict_output
    tools = [_definition(tool, strict_output=strict_output) for tool in request.tools]
    for tool, made in zip(request.tools, tools, strict=True):
        if made.strict:
            check_strict(name, model, tool)
    return ModelRequestParameters(
        function_tools=tools or _stand_in(request, model),
        native_tools=[native_tool(tool) for tool in request.provider_tools],
        instruction_parts=[InstructionPart(content=request.instructions)] if request.instructions else None,
    )


def settings_of(request: ModelRequest, model: Model[Any]) -> ModelSettings:
    """The settings that are set; `provider_options` are passed through under Pydantic AI's names."""
    ours = request.settings
    settings: dict[str, Any] = {
        "temperature": ours.temperature,
        "top_p": ours.top_p,
        "max_tokens": ours.max_output_tokens,
        "stop_sequences": list(ours.stop_sequences) or None,
        "seed": ours.seed,
        "extra_headers": dict(ours.headers) or None,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if not request.tools:
        # Where there is nothing to choose from, the stand-in is nothing either.
        settings |= {"tool_choice": "none"} if _stand_in(request, model) else {}
    elif ours.tool_choice is not None:
        settings["tool_choice"] = _choice(ours.tool_choice, request)
    settings |= _cache_anchor(request, model)
    if request.provider_tools:
        settings |= _outcomes_wanted(request, model)
    settings |= ours.provider_options
    # Only the engine retries: it knows the budget, honours the provider's requested wait, and can be interrupted.
    # Where this is no setting, the connection was opened without retries.
    settings.pop("max_retries", None)
    settings |= {} if "max_retries" in model.unsupported_settings else {"max_retries": 0}
    return cast("ModelSettings", settings)


def _stand_in(request: ModelRequest, model: Model[Any]) -> list[ToolDefinition]:
    """A tool that cannot be called, for a request without tools whose history has calls; empty if none is needed."""
    if request.tools or request.provider_tools or model.canonical_system not in _NEED_A_TOOL:
        return []
    calls = any(isinstance(message, AssistantMessage) and message.tool_calls for message in request.messages)
    return [_NO_TOOL] if calls else []


def _choice(choice: str, request: ModelRequest) -> ToolChoice:
    """Their form of a tool choice. The output is submitted by calling a tool, which `"none"` does not rule out."""
    if choice == "none" and any(tool.name == FINISH_TOOL for tool in request.tools):
        return ToolOrOutput(function_tools=[FINISH_TOOL])
    if choice in ("auto", "required", "none"):
        return choice
    return [choice]


def cache_ttl(request: ModelRequest, model: Model[Any]) -> CacheTtl | None:
    """How long the provider should keep the prompt, if it was asked to."""
    cache = request.settings.cache
    return cache.ttl if cache is not None and model.canonical_system == cache.provider else None


def _cache_anchor(request: ModelRequest, model: Model[Any]) -> dict[str, Any]:
    ttl = cache_ttl(request, model)
    if ttl is None:
        return {}
    # A prompt is read tools first, so an anchor at the instructions covers both; without instructions, the last tool
    # has to carry it.
    # Anthropic's models on Bedrock are told under Bedrock's name.
    at = "instructions" if request.instructions else "tool_definitions"
    return {f"{model.system}_cache_{at}": ttl}


def _outcomes_wanted(request: ModelRequest, model: Model[Any]) -> dict[str, Any]:
    """What providers say about the outcome of their tools only if they are asked."""
    kinds = {type(tool) for tool in request.provider_tools}
    wanted: dict[str, Any] = {}
    # Anthropic's models would write the marks of their citations into the arguments of `__finish__`.
    submits = any(tool.name == FINISH_TOOL for tool in request.tools)
    if model.canonical_system == "anthropic" and kinds & {WebSearch, WebFetch} and not submits:
        wanted["citations"] = True
    if model.canonical_system == "openai" and CodeExecution in kinds:
        wanted["openai_include_code_execution_outputs"] = True
    return wanted


def _definition(tool: ToolSpec, *, strict_output: bool) -> ToolDefinition:
    strict = True if tool.strict is None and strict_output and tool.name == FINISH_TOOL else tool.strict
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=tool.parameters,
        strict=strict,
    )
