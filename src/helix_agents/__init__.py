"""LLM agents whose work survives crashes. This module exports the public names, each loaded when it is first used."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    # For editors and type checkers, each as `from … import Name as Name`. At run time _HOME below does the same
    # work, later; a test keeps the lists equal.
    from helix_agents.agent.agent import Agent as Agent
    from helix_agents.agent.agent import AnyAgent as AnyAgent
    from helix_agents.agent.client_tools import DefaultAnswer as DefaultAnswer
    from helix_agents.agent.client_tools import ask_human as ask_human
    from helix_agents.agent.client_tools import client_tool as client_tool
    from helix_agents.agent.compaction import Compaction as Compaction
    from helix_agents.agent.companions import PersistentAgent as PersistentAgent
    from helix_agents.agent.context import RunContext as RunContext
    from helix_agents.agent.context import ToolContext as ToolContext
    from helix_agents.agent.failures import FailRun as FailRun
    from helix_agents.agent.failures import OutcomeUnknown as OutcomeUnknown
    from helix_agents.agent.failures import RetryOutput as RetryOutput
    from helix_agents.agent.failures import RetryTool as RetryTool
    from helix_agents.agent.failures import ToolFailed as ToolFailed
    from helix_agents.agent.fallback_model import FallbackModel as FallbackModel
    from helix_agents.agent.handoffs import Handoff as Handoff
    from helix_agents.agent.history import ForgetToolResults as ForgetToolResults
    from helix_agents.agent.history import HistoryProcessor as HistoryProcessor
    from helix_agents.agent.history import LastTurns as LastTurns
    from helix_agents.agent.hooks import Hooks as Hooks
    from helix_agents.agent.merging import Merge as Merge
    from helix_agents.agent.outcomes import DidNotHappen as DidNotHappen
    from helix_agents.agent.outcomes import Happened as Happened
    from helix_agents.agent.outcomes import Reconciled as Reconciled
    from helix_agents.agent.outcomes import StillUnknown as StillUnknown
    from helix_agents.agent.registry import AgentRegistry as AgentRegistry
    from helix_agents.agent.skills import Skill as Skill
    from helix_agents.agent.sub_agents import sub_agent_tool as sub_agent_tool
    from helix_agents.agent.tools import Tool as Tool
    from helix_agents.agent.tools import tool as tool
    from helix_agents.agent.workspace import Workspace as Workspace
    from helix_agents.capabilities.client import open_state as open_state
    from helix_agents.capabilities.toolset import state_capabilities as state_capabilities
    from helix_agents.domain.budgets import Budget as Budget
    from helix_agents.domain.capability_errors import CapabilityError as CapabilityError
    from helix_agents.domain.checkpoints import Checkpoint as Checkpoint
    from helix_agents.domain.chunks import StreamChunk as StreamChunk
    from helix_agents.domain.errors import CallFailedError as CallFailedError
    from helix_agents.domain.errors import DefinitionError as DefinitionError
    from helix_agents.domain.errors import HelixError as HelixError
    from helix_agents.domain.memories import MemoryRecord as MemoryRecord
    from helix_agents.domain.messages import AssistantMessage as AssistantMessage
    from helix_agents.domain.messages import File as File
    from helix_agents.domain.messages import Image as Image
    from helix_agents.domain.messages import Message as Message
    from helix_agents.domain.messages import ProviderCall as ProviderCall
    from helix_agents.domain.messages import Source as Source
    from helix_agents.domain.messages import Text as Text
    from helix_agents.domain.messages import ToolCall as ToolCall
    from helix_agents.domain.messages import ToolMessage as ToolMessage
    from helix_agents.domain.messages import UserMessage as UserMessage
    from helix_agents.domain.paging import Page as Page
    from helix_agents.domain.pending import AnswerAccepted as AnswerAccepted
    from helix_agents.domain.pending import AnswerAlreadyCompleted as AnswerAlreadyCompleted
    from helix_agents.domain.pending import AnswerLate as AnswerLate
    from helix_agents.domain.pending import AnswerNotFound as AnswerNotFound
    from helix_agents.domain.pending import AnswerRefused as AnswerRefused
    from helix_agents.domain.pending import ApprovalAnswer as ApprovalAnswer
    from helix_agents.domain.pending import PendingCall as PendingCall
    from helix_agents.domain.pending import PendingFilter as PendingFilter
    from helix_agents.domain.pending import ToolAnswer as ToolAnswer
    from helix_agents.domain.queued import NotQueued as NotQueued
    from helix_agents.domain.queued import QueuedTurn as QueuedTurn
    from helix_agents.domain.queued import QueuedTurnBegun as QueuedTurnBegun
    from helix_agents.domain.queued import QueuedTurnChanged as QueuedTurnChanged
    from helix_agents.domain.queued import QueuedTurnDropped as QueuedTurnDropped
    from helix_agents.domain.results import Completed as Completed
    from helix_agents.domain.results import Failed as Failed
    from helix_agents.domain.results import Interrupted as Interrupted
    from helix_agents.domain.results import RunResult as RunResult
    from helix_agents.domain.results import Suspended as Suspended
    from helix_agents.domain.runs import RunRecord as RunRecord
    from helix_agents.domain.runs import RunStatus as RunStatus
    from helix_agents.domain.schedules import Schedule as Schedule
    from helix_agents.domain.sessions import BranchPoint as BranchPoint
    from helix_agents.domain.sessions import SessionFilter as SessionFilter
    from helix_agents.domain.sessions import SessionState as SessionState
    from helix_agents.domain.sessions import SessionStatus as SessionStatus
    from helix_agents.domain.writes import Add as Add
    from helix_agents.domain.writes import Append as Append
    from helix_agents.domain.writes import Delete as Delete
    from helix_agents.domain.writes import Include as Include
    from helix_agents.domain.writes import Replace as Replace
    from helix_agents.domain.writes import StepWrites as StepWrites
    from helix_agents.domain.writes import Update as Update
    from helix_agents.engine.requests.cleanup import expired_session_cleanup as expired_session_cleanup
    from helix_agents.engine.services import EngineOptions as EngineOptions
    from helix_agents.flows.flow import flow as flow
    from helix_agents.flows.flow_run import FlowRun as FlowRun
    from helix_agents.llm.prompt_cache import anthropic_cache as anthropic_cache
    from helix_agents.llm.scripted import RoutingScriptedModel as RoutingScriptedModel
    from helix_agents.llm.scripted import ScriptedModel as ScriptedModel
    from helix_agents.mcp_tools.server import MCPToolServer as MCPToolServer
    from helix_agents.memory.executors import BackgroundEmbeddingExecutor as BackgroundEmbeddingExecutor
    from helix_agents.memory.executors import InlineEmbeddingExecutor as InlineEmbeddingExecutor
    from helix_agents.memory.hashing import HashingEmbedder as HashingEmbedder
    from helix_agents.memory.learning import MemoryGeneration as MemoryGeneration
    from helix_agents.memory.memory import Memory as Memory
    from helix_agents.memory.memory_manager import MemoryManager as MemoryManager
    from helix_agents.ports.backend import Backend as Backend
    from helix_agents.ports.backend import open_backend as open_backend
    from helix_agents.ports.embeddings import EmbeddingAdapter as EmbeddingAdapter
    from helix_agents.ports.embeddings import open_embedder as open_embedder
    from helix_agents.ports.llm import LLMAdapter as LLMAdapter
    from helix_agents.ports.llm import ModelSettings as ModelSettings
    from helix_agents.ports.memory_store import MemoryStore as MemoryStore
    from helix_agents.ports.models import open_model as open_model
    from helix_agents.ports.provider_tools import CodeExecution as CodeExecution
    from helix_agents.ports.provider_tools import FileSearch as FileSearch
    from helix_agents.ports.provider_tools import ProviderMCP as ProviderMCP
    from helix_agents.ports.provider_tools import UserLocation as UserLocation
    from helix_agents.ports.provider_tools import WebFetch as WebFetch
    from helix_agents.ports.provider_tools import WebSearch as WebSearch
    from helix_agents.ports.skills import SkillProvider as SkillProvider
    from helix_agents.ports.state_store import SessionStateStore as SessionStateStore
    from helix_agents.ports.streams import StreamManager as StreamManager
    from helix_agents.ports.workspaces import WorkspaceProvider as WorkspaceProvider
    from helix_agents.runtimes.dbos.executor import DBOSAgentExecutor as DBOSAgentExecutor
    from helix_agents.runtimes.executor.handle import RunHandle as RunHandle
    from helix_agents.runtimes.executor.webhooks import Webhook as Webhook
    from helix_agents.runtimes.in_process.executor import Executor as Executor
    from helix_agents.runtimes.temporal.executor import TemporalAgentExecutor as TemporalAgentExecutor
    from helix_agents.server.app import AgentServer as AgentServer
    from helix_agents.server.auth import Principal as Principal
    from helix_agents.server.auth import bearer_tokens as bearer_tokens
    from helix_agents.server.client import AgentClient as AgentClient
    from helix_agents.server.client import ServedAgent as ServedAgent
    from helix_agents.server.remote import HttpRemoteAgentTransport as HttpRemoteAgentTransport
    from helix_agents.server.remote import remote_agent_tool as remote_agent_tool
    from helix_agents.server.remote_a2a.tool import a2a_agent_tool as a2a_agent_tool
    from helix_agents.server.remote_a2a.transport import A2ARemoteAgentTransport as A2ARemoteAgentTransport
    from helix_agents.skills.folder import SkillFolder as SkillFolder
    from helix_agents.tracing.hooks import OpenTelemetryHooks as OpenTelemetryHooks
    from helix_agents.workspaces.in_memory import InMemoryWorkspaces as InMemoryWorkspaces
    from helix_agents.workspaces.local import LocalWorkspaces as LocalWorkspaces
    from helix_agents.workspaces.sandbox import Sandbox as Sandbox

# Where each public name lives. Importing this package must stay cheap, so a module is loaded only when it is needed.
_HOME: dict[str, str] = {
    "A2ARemoteAgentTransport": "helix_agents.server.remote_a2a.transport",
    "Add": "helix_agents.domain.writes",
    "Agent": "helix_agents.agent.agent",
    "AgentClient": "helix_agents.server.client",
    "AgentRegistry": "helix_agents.agent.registry",
    "AgentServer": "helix_agents.server.app",
    "AnswerAccepted": "helix_agents.domain.pending",
    "AnswerAlreadyCompleted": "helix_agents.domain.pending",
    "AnswerLate": "helix_agents.domain.pending",
    "AnswerNotFound": "helix_agents.domain.pending",
    "AnswerRefused": "helix_agents.domain.pending",
    "AnyAgent": "helix_agents.agent.agent",
    "Append": "helix_agents.domain.writes",
    "ApprovalAnswer": "helix_agents.domain.pending",
    "AssistantMessage": "helix_agents.domain.messages",
    "Backend": "helix_agents.ports.backend",
    "BackgroundEmbeddingExecutor": "helix_agents.memory.executors",
    "BranchPoint": "helix_agents.domain.sessions",
    "Budget": "helix_agents.domain.budgets",
    "CallFailedError": "helix_agents.domain.errors",
    "CapabilityError": "helix_agents.domain.capability_errors",
    "Checkpoint": "helix_agents.domain.checkpoints",
    "CodeExecution": "helix_agents.ports.provider_tools",
    "Compaction": "helix_agents.agent.compaction",
    "Completed": "helix_agents.domain.results",
    "DBOSAgentExecutor": "helix_agents.runtimes.dbos.executor",
    "DefaultAnswer": "helix_agents.agent.client_tools",
    "DefinitionError": "helix_agents.domain.errors",
    "Delete": "helix_agents.domain.writes",
    "DidNotHappen": "helix_agents.agent.outcomes",
    "EmbeddingAdapter": "helix_agents.ports.embeddings",
    "EngineOptions": "helix_agents.engine.services",
    "Executor": "helix_agents.runtimes.in_process.executor",
    "FailRun": "helix_agents.agent.failures",
    "Failed": "helix_agents.domain.results",
    "FallbackModel": "helix_agents.agent.fallback_model",
    "File": "helix_agents.domain.messages",
    "FileSearch": "helix_agents.ports.provider_tools",
    "FlowRun": "helix_agents.flows.flow_run",
    "ForgetToolResults": "helix_agents.agent.history",
    "Handoff": "helix_agents.agent.handoffs",
    "Happened": "helix_agents.agent.outcomes",
    "HashingEmbedder": "helix_agents.memory.hashing",
    "HelixError": "helix_agents.domain.errors",
    "HistoryProcessor": "helix_agents.agent.history",
    "Hooks": "helix_agents.agent.hooks",
    "HttpRemoteAgentTransport": "helix_agents.server.remote",
    "Image": "helix_agents.domain.messages",
    "InMemoryWorkspaces": "helix_agents.workspaces.in_memory",
    "Include": "helix_agents.domain.writes",
    "InlineEmbeddingExecutor": "helix_agents.memory.executors",
    "Interrupted": "helix_agents.domain.results",
    "LLMAdapter": "helix_agents.ports.llm",
    "LastTurns": "helix_agents.agent.history",
    "LocalWorkspaces": "helix_agents.workspaces.local",
    "MCPToolServer": "helix_agents.mcp_tools.server",
    "Memory": "helix_agents.memory.memory",
    "MemoryGeneration": "helix_agents.memory.learning",
    "MemoryManager": "helix_agents.memory.memory_manager",
    "MemoryRecord": "helix_agents.domain.memories",
    "MemoryStore": "helix_agents.ports.memory_store",
    "Merge": "helix_agents.agent.merging",
    "Message": "helix_agents.domain.messages",
    "ModelSettings": "helix_agents.ports.llm",
    "NotQueued": "helix_agents.domain.queued",
    "OpenTelemetryHooks": "helix_agents.tracing.hooks",
    "OutcomeUnknown": "helix_agents.agent.failures",
    "Page": "helix_agents.domain.paging",
    "PendingCall": "helix_agents.domain.pending",
    "PendingFilter": "helix_agents.domain.pending",
    "PersistentAgent": "helix_agents.agent.companions",
    "Principal": "helix_agents.server.auth",
    "ProviderCall": "helix_agents.domain.messages",
    "ProviderMCP": "helix_agents.ports.provider_tools",
    "QueuedTurn": "helix_agents.domain.queued",
    "QueuedTurnBegun": "helix_agents.domain.queued",
    "QueuedTurnChanged": "helix_agents.domain.queued",
    "QueuedTurnDropped": "helix_agents.domain.queued",
    "Reconciled": "helix_agents.agent.outcomes",
    "Replace": "helix_agents.domain.writes",
    "RetryOutput": "helix_agents.agent.failures",
    "RetryTool": "helix_agents.agent.failures",
    "RoutingScriptedModel": "helix_agents.llm.scripted",
    "RunContext": "helix_agents.agent.context",
    "RunHandle": "helix_agents.runtimes.executor.handle",
    "RunRecord": "helix_agents.domain.runs",
    "RunResult": "helix_agents.domain.results",
    "RunStatus": "helix_agents.domain.runs",
    "Sandbox": "helix_agents.workspaces.sandbox",
    "Schedule": "helix_agents.domain.schedules",
    "ScriptedModel": "helix_agents.llm.scripted",
    "ServedAgent": "helix_agents.server.client",
    "SessionFilter": "helix_agents.domain.sessions",
    "SessionState": "helix_agents.domain.sessions",
    "SessionStateStore": "helix_agents.ports.state_store",
    "SessionStatus": "helix_agents.domain.sessions",
    "Skill": "helix_agents.agent.skills",
    "SkillFolder": "helix_agents.skills.folder",
    "SkillProvider": "helix_agents.ports.skills",
    "Source": "helix_agents.domain.messages",
    "StepWrites": "helix_agents.domain.writes",
    "StillUnknown": "helix_agents.agent.outcomes",
    "StreamChunk": "helix_agents.domain.chunks",
    "StreamManager": "helix_agents.ports.streams",
    "Suspended": "helix_agents.domain.results",
    "TemporalAgentExecutor": "helix_agents.runtimes.temporal.executor",
    "Text": "helix_agents.domain.messages",
    "Tool": "helix_agents.agent.tools",
    "ToolAnswer": "helix_agents.domain.pending",
    "ToolCall": "helix_agents.domain.messages",
    "ToolContext": "helix_agents.agent.context",
    "ToolFailed": "helix_agents.agent.failures",
    "ToolMessage": "helix_agents.domain.messages",
    "Update": "helix_agents.domain.writes",
    "UserLocation": "helix_agents.ports.provider_tools",
    "UserMessage": "helix_agents.domain.messages",
    "WebFetch": "helix_agents.ports.provider_tools",
    "WebSearch": "helix_agents.ports.provider_tools",
    "Webhook": "helix_agents.runtimes.executor.webhooks",
    "Workspace": "helix_agents.agent.workspace",
    "WorkspaceProvider": "helix_agents.ports.workspaces",
    "a2a_agent_tool": "helix_agents.server.remote_a2a.tool",
    "anthropic_cache": "helix_agents.llm.prompt_cache",
    "ask_human": "helix_agents.agent.client_tools",
    "bearer_tokens": "helix_agents.server.auth",
    "client_tool": "helix_agents.agent.client_tools",
    "expired_session_cleanup": "helix_agents.engine.requests.cleanup",
    "flow": "helix_agents.flows.flow",
    "open_backend": "helix_agents.ports.backend",
    "open_embedder": "helix_agents.ports.embeddings",
    "open_model": "helix_agents.ports.models",
    "open_state": "helix_agents.capabilities.client",
    "remote_agent_tool": "helix_agents.server.remote",
    "state_capabilities": "helix_agents.capabilities.toolset",
    "sub_agent_tool": "helix_agents.agent.sub_agents",
    "tool": "helix_agents.agent.tools",
}

# What `import *` brings; a name that needs an extra has to be imported explicitly.
__all__ = [
    "A2ARemoteAgentTransport",
    "Add",
    "Agent",
    "AgentClient",
    "AgentRegistry",
    "AnswerAccepted",
    "AnswerAlreadyCompleted",
    "AnswerLate",
    "AnswerNotFound",
    "AnswerRefused",
    "AnyAgent",
    "Append",
    "ApprovalAnswer",
    "AssistantMessage",
    "Backend",
    "BackgroundEmbeddingExecutor",
    "BranchPoint",
    "Budget",
    "CallFailedError",
    "CapabilityError",
    "Checkpoint",
    "CodeExecution",
    "Compaction",
    "Completed",
    "DefaultAnswer",
    "DefinitionError",
    "Delete",
    "DidNotHappen",
    "EmbeddingAdapter",
    "EngineOptions",
    "Executor",
    "FailRun",
    "Failed",
    "FallbackModel",
    "File",
    "FileSearch",
    "FlowRun",
    "ForgetToolResults",
    "Handoff",
    "Happened",
    "HashingEmbedder",
    "HelixError",
    "HistoryProcessor",
    "Hooks",
    "HttpRemoteAgentTransport",
    "Image",
    "InMemoryWorkspaces",
    "Include",
    "InlineEmbeddingExecutor",
    "Interrupted",
    "LLMAdapter",
    "LastTurns",
    "LocalWorkspaces",
    "MCPToolServer",
    "Memory",
    "MemoryGeneration",
    "MemoryManager",
    "MemoryRecord",
    "MemoryStore",
    "Merge",
    "Message",
    "ModelSettings",
    "NotQueued",
    "OutcomeUnknown",
    "Page",
    "PendingCall",
    "PendingFilter",
    "PersistentAgent",
    "Principal",
    "ProviderCall",
    "ProviderMCP",
    "QueuedTurn",
    "QueuedTurnBegun",
    "QueuedTurnChanged",
    "QueuedTurnDropped",
    "Reconciled",
    "Replace",
    "RetryOutput",
    "RetryTool",
    "RoutingScriptedModel",
    "RunContext",
    "RunHandle",
    "RunRecord",
    "RunResult",
    "RunStatus",
    "Sandbox",
    "Schedule",
    "ScriptedModel",
    "ServedAgent",
    "SessionFilter",
    "SessionState",
    "SessionStateStore",
    "SessionStatus",
    "Skill",
    "SkillFolder",
    "SkillProvider",
    "Source",
    "StepWrites",
    "StillUnknown",
    "StreamChunk",
    "StreamManager",
    "Suspended",
    "Text",
    "Tool",
    "ToolAnswer",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolMessage",
    "Update",
    "UserLocation",
    "UserMessage",
    "WebFetch",
    "WebSearch",
    "Webhook",
    "Workspace",
    "WorkspaceProvider",
    "__version__",
    "a2a_agent_tool",
    "anthropic_cache",
    "ask_human",
    "bearer_tokens",
    "client_tool",
    "expired_session_cleanup",
    "flow",
    "open_backend",
    "open_embedder",
    "open_model",
    "open_state",
    "remote_agent_tool",
    "state_capabilities",
    "sub_agent_tool",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
