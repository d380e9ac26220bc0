"""Hooks: your code at fixed points of a run, to observe it, to change the state, or to fail the run.

| hook                 | event class           | fields                                                           |
|----------------------|-----------------------|------------------------------------------------------------------|
| on_agent_start       | AgentStartEvent       | turn, input                                                      |
| on_agent_complete    | AgentCompleteEvent    | output, step_count, duration_ms                                  |
| on_agent_fail        | AgentFailEvent        | code, error, retryable, step_count, duration_ms                  |
| on_agent_interrupted | AgentInterruptedEvent | reason, step_count, duration_ms                                  |
| on_agent_suspended   | AgentSuspendedEvent   | run_id, reason, tool_call_ids, step_count, duration_ms           |
| on_agent_resumed     | AgentResumedEvent     | run_id, previous_run_id, session_id, resumed_from_checkpoint_id  |
| on_handoff           | HandoffEvent          | tool_call_id, to, input                                          |
| before_llm_call      | BeforeLLMCallEvent    | model, request, purpose                                          |
| around_llm_call      | AroundLLMCallEvent    | model, request, purpose                                          |
| on_llm_retry         | LLMRetryEvent         | model, code, error, failures, wait_seconds                       |
| after_llm_call       | AfterLLMCallEvent     | model, reply, usage, duration_ms, purpose                        |
| before_tool          | BeforeToolEvent       | tool_name, tool_call_id, input                                   |
| around_tool          | AroundToolEvent       | tool_name, tool_call_id, input                                   |
| after_tool           | AfterToolEvent        | tool_name, tool_call_id, input, result, error, code, duration_ms |
|                      |                       | ended_at, ran_by, errand, parts                                  |
| on_tool_refused      | ToolRefusedEvent      | tool_name, tool_call_id, code, error                             |
| on_tool_unsettled    | ToolUnsettledEvent    | tool_name, tool_call_id, waits, duration_ms, ran_by, errand      |
| before_sub_agent     | BeforeSubAgentEvent   | tool_call_id, agent, child_session_id, input                     |
| after_sub_agent      | AfterSubAgentEvent    | tool_call_id, agent, child_session_id, status, result, error     |
|                      |                       | duration_ms                                                      |
| on_message           | MessageEvent          | message                                                          |
| on_state_change      | StateChangeEvent      | tool_call_id, writes                                             |
| on_text_delta        | TextDeltaEvent        | delta                                                            |
| on_thinking          | ThinkingEvent         | delta, done                                                      |

Each hook takes `(ctx, event)` and is sync or async; a sync one runs on the event loop and has to be quick. `ctx.state`
is a draft whose changes are part of the same step's commit. `on_text_delta`, `on_thinking`, `on_llm_retry` and the two
`around_` hooks get a `RunInfo` without state.

`around_llm_call` and `around_tool` are generators that yield once. What they set up before the `yield`, such as context
variables, is in force only while the model is asked or the function runs. The `yield` returns the outcome, an
`AfterLLMCallEvent` or `AfterToolEvent`. If there is no outcome, because the model failed or a stop cut the work short,
it raises the exception that ended the work.

The order for each tool is before_tool, the tool itself, on_state_change, on_message, after_tool; the last two follow
the whole parallel batch, in call order. A delegated call counts as a tool, with before_sub_agent and after_sub_agent
around the child. If several `Hooks` apply, each point runs the parent's first, then the executor's, the agent's and
those of the call; an object given in several of these places runs once. A parent's hooks, including those of its call,
also run in its sub-agents, where `ctx` is the child's.

If a hook raises, the error is reported, its changes to the state are dropped, and the run continues; `FailRun` fails
the run. Hooks run at least once: after a crash, the hooks of the step in flight may run again, with the same `run_id`
and `step`.
"""

import difflib
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, cast, get_args

from typing_extensions import TypeVar

from helix_agents.agent.calling import call_quick
from helix_agents.agent.context import DepsT, RunContext, RunInfo
from helix_agents.agent.failures import ControlFlow, FailRun
from helix_agents.agent.hook_events import (
    AfterLLMCallEvent,
    AfterSubAgentEvent,
    AfterToolEvent,
    AgentCompleteEvent,
    AgentFailEvent,
    AgentInterruptedEvent,
    AgentResumedEvent,
    AgentStartEvent,
    AgentSuspendedEvent,
    AroundLLMCallEvent,
    AroundToolEvent,
    BeforeLLMCallEvent,
    BeforeSubAgentEvent,
    BeforeToolEvent,
    HandoffEvent,
    HookEvent,
    HookName,
    LLMRetryEvent,
    MessageEvent,
    StateChangeEvent,
    TextDeltaEvent,
    ThinkingEvent,
    ToolRefusedEvent,
    ToolUnsettledEvent,
)
from helix_agents.agent.state_type import StateT
from helix_agents.agent.surroundings import Surroundings
from helix_agents.domain.errors import DefinitionError

HOOK_NAMES: tuple[HookName, ...] = get_args(HookName)

EventT = TypeVar("EventT", bound=HookEvent, default=HookEvent)
HookResult: TypeAlias = Awaitable[None] | None
Hook: TypeAlias = Callable[[RunContext[StateT, DepsT], EventT], HookResult]
DeltaHook: TypeAlias = Callable[[RunInfo, EventT], HookResult]
OutcomeT = TypeVar("OutcomeT", bound=HookEvent, default=HookEvent)
Around: TypeAlias = Generator[None, OutcomeT, None] | None
AroundHook: TypeAlias = Callable[[RunInfo, EventT], Around[OutcomeT]]


class Hooks(Generic[StateT, DepsT]):
    """A set of hooks: subclass it and override what you need, or pass functions by name.

    ```python
    class Audit(Hooks[Notes]):
        async def after_tool(self, ctx: RunContext[Notes], event: AfterToolEvent) -> None:
            ctx.state.calls.append(event.tool_name)

    Hooks(on_message=lambda ctx, event: print(event.message))
    ```
    """

    def __init__(
        self,
        *,
        on_agent_start: Hook[StateT, DepsT, AgentStartEvent] | None = None,
        on_agent_complete: Hook[StateT, DepsT, AgentCompleteEvent] | None = None,
        on_agent_fail: Hook[StateT, DepsT, AgentFailEvent] | None = None,
        on_agent_interrupted: Hook[StateT, DepsT, AgentInterruptedEvent] | None = None,
        on_agent_suspended: Hook[StateT, DepsT, AgentSuspendedEvent] | None = None,
        on_agent_resumed: Hook[StateT, DepsT, AgentResumedEvent] | None = None,
        on_handoff: Hook[StateT, DepsT, HandoffEvent] | None = None,
        before_llm_call: Hook[StateT, DepsT, BeforeLLMCallEvent] | None = None,
        around_llm_call: AroundHook[AroundLLMCallEvent, AfterLLMCallEvent] | None = None,
        on_llm_retry: DeltaHook[LLMRetryEvent] | None = None,
        after_llm_call: Hook[StateT, DepsT, AfterLLMCallEvent] | None = None,
        before_tool: Hook[StateT, DepsT, BeforeToolEvent] | None = None,
        around_tool: AroundHook[AroundToolEvent, AfterToolEvent] | None = None,
        after_tool: Hook[StateT, DepsT, AfterToolEvent] | None = None,
        on_tool_refused: Hook[StateT, DepsT, ToolRefusedEvent] | None = None,
        on_tool_unsettled: Hook[StateT, DepsT, ToolUnsettledEvent] | None = None,
        before_sub_agent: Hook[StateT, DepsT, BeforeSubAgentEvent] | None = None,
        after_sub_agent: Hook[StateT, DepsT, AfterSubAgentEvent] | None = None,
        on_message: Hook[StateT, DepsT, MessageEvent] | None = None,
        on_state_change: Hook[StateT, DepsT, StateChangeEvent] | None = None,
        on_text_delta: DeltaHook[TextDeltaEvent] | None = None,
        on_thinking: DeltaHook[ThinkingEvent] | None = None,
    ) -> None:
        given = dict(locals())
        for name in HOOK_NAMES:
            if given[name] is not None:
                setattr(self, name, given[name])

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in vars(cls):
            if name.startswith(("on_", "before_", "around_", "after_")) and name not in HOOK_NAMES:
                close = difflib.get_close_matches(name, HOOK_NAMES, n=1, cutoff=0)[0]
                raise DefinitionError(f"Hooks {cls.__name__}", f"there is no hook {name!r}; did you mean {close!r}?")

    def on_agent_start(self, ctx: RunContext[StateT, DepsT], event: AgentStartEvent) -> HookResult: ...
    def on_agent_complete(self, ctx: RunContext[StateT, DepsT], event: AgentCompleteEvent) -> HookResult: ...
    def on_agent_fail(self, ctx: RunContext[StateT, DepsT], event: AgentFailEvent) -> HookResult: ...
    def on_agent_interrupted(self, ctx: RunContext[StateT, DepsT], event: AgentInterruptedEvent) -> HookResult: ...
    def on_agent_suspended(self, ctx: RunContext[StateT, DepsT], event: AgentSuspendedEvent) -> HookResult: ...
    def on_agent_resumed(self, ctx: RunContext[StateT, DepsT], event: AgentResumedEvent) -> HookResult: ...
    def on_handoff(self, ctx: RunContext[StateT, DepsT], event: HandoffEvent) -> HookResult: ...
    def before_llm_call(self, ctx: RunContext[StateT, DepsT], event: BeforeLLMCallEvent) -> HookResult: ...
    def around_llm_call(self, ctx: RunInfo, event: AroundLLMCallEvent) -> Around[AfterLLMCallEvent]: ...
    def on_llm_retry(self, ctx: RunInfo, event: LLMRetryEvent) -> HookResult: ...
    def after_llm_call(self, ctx: RunContext[StateT, DepsT], event: AfterLLMCallEvent) -> HookResult: ...
    def before_tool(self, ctx: RunContext[StateT, DepsT], event: BeforeToolEvent) -> HookResult: ...
    def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Around[AfterToolEvent]: ...
    def after_tool(self, ctx: RunContext[StateT, DepsT], event: AfterToolEvent) -> HookResult: ...
    def on_tool_refused(self, ctx: RunContext[StateT, DepsT], event: ToolRefusedEvent) -> HookResult: ...
    def on_tool_unsettled(self, ctx: RunContext[StateT, DepsT], event: ToolUnsettledEvent) -> HookResult: ...
    def before_sub_agent(self, ctx: RunContext[StateT, DepsT], event: BeforeSubAgentEvent) -> HookResult: ...
    def after_sub_agent(self, ctx: RunContext[StateT, DepsT], event: AfterSubAgentEvent) -> HookResult: ...
    def on_message(self, ctx: RunContext[StateT, DepsT], event: MessageEvent) -> HookResult: ...
    def on_state_change(self, ctx: RunContext[StateT, DepsT], event: StateChangeEvent) -> HookResult: ...
    def on_text_delta(self, ctx: RunInfo, event: TextDeltaEvent) -> HookResult: ...
    def on_thinking(self, ctx: RunInfo, event: ThinkingEvent) -> HookResult: ...

    def implemented(self, name: HookName) -> Callable[[Any, Any], Any] | None:
        """The hook of this name; None if it is not implemented."""
        hook = getattr(self, name)
        return None if getattr(hook, "__func__", hook) is getattr(Hooks, name) else hook


@dataclass(frozen=True, kw_only=True)
class HookFailure:
    """A hook raised; the run continues."""

    hook: HookName
    function: str
    error: BaseException


class HookOrder:
    """Several sets of hooks as one, in the order given; a set that was given twice runs once."""

    def __init__(self, hooks: Sequence[Hooks[Any, Any]] = ()) -> None:
        self.hooks = tuple({id(each): each for each in hooks}.values())
        self._written = {
            name: tuple(hook for each in self.hooks if (hook := each.implemented(name))) for name in HOOK_NAMES
        }

    def wants(self, name: HookName) -> bool:
        """Whether any set implements this hook: if not, its event need not be created."""
        return bool(self._written[name])

    async def fire(self, ctx: RunInfo, event: HookEvent, report: Callable[[HookFailure], object]) -> None:
        """Run every hook of this point in order. If one raises, or leaves a state that its type rejects, it is reported
        and its changes to the state are dropped.

        Raises:
            FailRun: a hook wants the run to fail; the hooks after it do not run.
        """
        draft = cast("RunContext[Any, Any]", ctx).link.draft if isinstance(ctx, RunContext) else None
        for hook in self._written[event.hook]:
            name: str = getattr(hook, "__qualname__", repr(hook))
            before = None if draft is None else draft.savepoint()
            try:
                await call_quick(f"Hook {name}", hook, ctx, event)
                if draft is not None:
                    draft.writes()
            except FailRun:
                raise
            except (Exception, ControlFlow) as problem:
                if draft is not None and before is not None:
                    draft.rollback(before)
                report(HookFailure(hook=event.hook, function=name, error=problem))

    def around(self, info: RunInfo, event: HookEvent, report: Callable[[HookFailure], object]) -> Surroundings:
        """The hooks around a piece of work, to be started together with it; what they raise is reported."""
        name = event.hook
        return Surroundings(
            self._written[name],
            info,
            event,
            lambda function, error: report(HookFailure(hook=name, function=function, error=error)),
        )


SomeHooks: TypeAlias = Hooks[Any, Any] | Sequence[Hooks[Any, Any]] | None


def each_hooks(given: SomeHooks) -> tuple[Hooks[Any, Any], ...]:
    """None, one or several, as a tuple."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) else (given,)


def ordered(
    *, parent: SomeHooks = None, executor: SomeHooks = None, agent: SomeHooks = None, call: SomeHooks = None
) -> HookOrder:
    """The hooks of one run: the parent agent's, the executor's, the agent's, then those of the call."""
    return HookOrder([hooks for level in (parent, executor, agent, call) for hooks in each_hooks(level)])
