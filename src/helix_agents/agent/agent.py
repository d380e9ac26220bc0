"""An agent: a model, instructions, tools, and the types of its state and output, as one frozen definition."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeAlias, cast

from typing_extensions import TypeForm, TypeVar

from helix_agents.agent.agent_checks import check_definition
from helix_agents.agent.availability import AvailabilityPredicate, Conditional
from helix_agents.agent.budgets import check_prices
from helix_agents.agent.calling import call_quick
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.companions import PersistentAgent, companion_tools
from helix_agents.agent.context import CompletedStep, DepsT, RunContext
from helix_agents.agent.durations import Deadline, Duration, deadline_milliseconds, optional_milliseconds
from helix_agents.agent.fallback_model import models_in
from helix_agents.agent.handoffs import Handoff, HandoffTool, check_handoffs, handoff_tools
from helix_agents.agent.history import HistoryProcessor
from helix_agents.agent.hooks import Hooks, each_hooks
from helix_agents.agent.memory import AgentMemory, tools_of
from helix_agents.agent.model_settings import check_tool_choice
from helix_agents.agent.output import OutputT, OutputType
from helix_agents.agent.output_checks import OutputCheck
from helix_agents.agent.schemas import jsonable
from helix_agents.agent.skills import GivenSkills, provider_of, skill_tools
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.state_type import NoState, StateT, StateType, state_type_of
from helix_agents.agent.tools import Capabilities, Tool
from helix_agents.agent.workspace import Workspace
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import (
    DefinitionError,
    HelixError,
    InvalidStateError,
    StateSchemaChangedError,
    ToolOutputError,
    UnstorableValueError,
)
from helix_agents.domain.records import JSON, decode_json, encode
from helix_agents.domain.writes import AppendToNonListError, Delete, StepWrites, apply_writes, difference
from helix_agents.ports.llm import FINISH_TOOL, LLMAdapter, ModelSettings, ToolSpec
from helix_agents.ports.prices import Prices
from helix_agents.ports.provider_tools import ProviderTool, refusal_of
from helix_agents.ports.skills import SkillProvider

Instructions: TypeAlias = str | Callable[[RunContext[StateT, DepsT]], Awaitable[str] | str]
AgentStateT = TypeVar("AgentStateT", default=NoState)

StopWhen: TypeAlias = Callable[[CompletedStep[StateT]], bool | str]
MigrateState: TypeAlias = Callable[[dict[str, JSON], int], Mapping[str, JSON] | StateT]


@dataclass(frozen=True, kw_only=True)
class LoadedState:
    """Stored state, brought up to the agent's present version; `writes` holds the changes needed to store it that
    way."""

    custom_state: dict[str, JSON]
    writes: StepWrites


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Agent(Generic[AgentStateT, OutputT, DepsT]):
    """The definition of an agent. Creating one runs no code except the defaults of its state type.

    Args:
        name: How sessions, logs and other agents refer to the agent. Never change it while sessions are alive.
        model: A model by name, such as `"anthropic:claude-sonnet-4-5"`, or an adapter.
        description: What the agent does. Agents that delegate to it read this.
        version: Raise it when the state type changes. Sessions remember the version that wrote them.
        instructions: The system prompt, or a function of the run that returns it and is called before each step.
        tools: The tools the agent may call.
        provider_tools: Tools that the model's provider runs itself, such as `WebSearch()`. Their calls are part of the
            model's reply: nobody approves them, and no tool of yours runs.
        capabilities: Bundles of ready-made tools, such as `state_capabilities()`.
        skills: Texts the agent may read when a task calls for them: a list of `Skill`, or a provider such as
            `SkillFolder`. Sub-agents do not inherit them.
        preload_skills: Names of the skills whose texts are included in every request.
        state: A pydantic model or dataclass in which every field has a default. Tools see it as `ctx.state`.
        output: The type a run has to produce; the model submits it through `__finish__`. Without it, the output is the
            model's last text. For mypy, write a union as `TypeForm(A | B)`.
        migrate_state: Converts state that an earlier version stored, or state that no longer fits, to the present form.
        settings: How the model should answer.
        max_steps: The maximum number of steps in one turn.
        budget: What the models of one turn may use, in tokens, dollars or calls; see `Budget`.
        prices: What the agent's models cost in dollars: a function of a model's name and its tokens that returns None
            for a model it does not know. Without it, the price list that comes with the providers' extras is used.
        stop_when: Called with each complete step before it is committed. Returning True, or a reason, ends the turn.
        retries: How many times per turn the model may correct its calls to one tool, unless the tool says otherwise.
        output_retries: How many times the model is reminded or corrected before a run without valid output fails.
        output_checks: Functions of the run and its output, called one after the other before the run completes with
            what the model said or handed in. One that raises `RetryOutput` sends the model back.
        compaction: When to summarise a long conversation for the model. Without it, the model sees all of it.
        history_processors: Functions that choose, one after the other, what the model is shown before each call, such
            as `ForgetToolResults`. They change nothing that is stored.
        memory: What the agent remembers across conversations, and about whom; see `Memory`.
        workspace: The files the agent works with in each session, and what it may do with them; see `Workspace`.
        hooks: Your code, called at fixed points of a run.
        handoffs: Agents that may take over a conversation from this one: it then is theirs, in this turn and the next
            ones, until they hand it on. An `Agent`, or a `Handoff` that says more. The model gets a tool for each.
        persistent_agents: Companions the agent may keep: named children that remember their conversation. The agent
            gets tools to work with them.
        session_ttl: How long a session lives after its last entry or answer.
        pending_deadline: How long a call may wait for an answer, unless its tool says otherwise. None means forever.

    Raises:
        DefinitionError: the agent could not work; the message says why and what to do.
    """

    name: str
    model: str | LLMAdapter
    description: str = ""
    version: int = 1
    instructions: Instructions[AgentStateT, DepsT] = ""
    tools: Sequence[Tool[..., Any]] = ()
    provider_tools: Sequence[ProviderTool] = ()
    capabilities: Sequence[Capabilities] = ()
    skills: GivenSkills | None = None
    preload_skills: Sequence[str] = ()
    state: type[AgentStateT] | None = None
    output: TypeForm[OutputT] | None = None
    migrate_state: MigrateState[AgentStateT] | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    max_steps: int = 20
    budget: Budget | None = None
    prices: Prices | None = None
    stop_when: StopWhen[AgentStateT] | None = None
    retries: int = 2
    output_retries: int = 2
    output_checks: Sequence[OutputCheck[AgentStateT, DepsT, OutputT]] | None = None
    compaction: Compaction | None = None
    history_processors: Sequence[HistoryProcessor[AgentStateT, DepsT]] | None = None
    memory: AgentMemory | None = None
    workspace: Workspace | None = None
    hooks: Hooks[AgentStateT, DepsT] | Sequence[Hooks[AgentStateT, DepsT]] | None = None
    handoffs: "Sequence[Agent[Any, Any, Any] | Handoff]" = ()
    persistent_agents: Sequence[PersistentAgent] = ()
    session_ttl: Duration | None = None
    pending_deadline: Deadline = "inherit"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hooks", each_hooks(self.hooks))
        check_definition(vars(self))
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "provider_tools", tuple(self.provider_tools))
        object.__setattr__(self, "capabilities", tuple(self.capabilities))
        # Before the others: it rejects what is not a list.
        _ = self.handoff_tools
        object.__setattr__(self, "handoffs", tuple(self.handoffs))
        object.__setattr__(self, "persistent_agents", tuple(self.persistent_agents))
        object.__setattr__(self, "output_checks", tuple(self.output_checks or ()))
        object.__setattr__(self, "preload_skills", tuple(self.preload_skills))
        object.__setattr__(self, "history_processors", tuple(self.history_processors or ()))
        if isinstance(self.skills, Sequence):
            object.__setattr__(self, "skills", tuple(self.skills))
        # A property that cannot be computed is an error in the definition, so it has to surface now.
        _ = self.state_type, self.output_type, self.session_ttl_ms, self.pending_deadline_ms, self.companion_tools
        if self.settings.tool_choice is not None:
            names = [each.name for each in self.tool_specs]
            check_tool_choice(f"Agent {self.name!r}", self.settings.tool_choice, names)
        if self.budget is not None:
            self.check_priced(self.budget, f"Agent {self.name!r}")
        check_handoffs(self)

    def __repr__(self) -> str:
        return f"<agent {self.name!r} version {self.version}>"

    @cached_property
    def state_type(self) -> StateType[AgentStateT]:
        """How the agent's state is stored and read back."""
        return state_type_of(cast("type[AgentStateT]", NoState if self.state is None else self.state))

    @cached_property
    def output_type(self) -> OutputType[OutputT] | None:
        """How the agent's output is submitted, stored and read back; None when the output is the last text."""
        return None if self.output in (None, str) else OutputType(self.output, f"Agent {self.name!r}")

    @cached_property
    def session_ttl_ms(self) -> int | None:
        """How long a session lives after its last entry or answer."""
        return optional_milliseconds(self.session_ttl, f"Agent {self.name!r}", "session_ttl")

    @cached_property
    def pending_deadline_ms(self) -> int | Literal["inherit"] | None:
        """How long a call may wait for an answer; `"inherit"` leaves it to the executor."""
        return deadline_milliseconds(self.pending_deadline, f"Agent {self.name!r}", "pending_deadline")

    @property
    def models(self) -> tuple[str | LLMAdapter, ...]:
        """The models that the agent's runs may call, not counting those of its sub-agents."""
        others = (
            None if self.compaction is None else self.compaction.model,
            None if self.memory is None else self.memory.model,
        )
        return (*models_in(self.model), *(each for other in others if other is not None for each in models_in(other)))

    def check_priced(self, budget: Budget, subject: str) -> None:
        """Reject a budget in dollars if it would have to cover a model without a known price.

        Raises:
            DefinitionError: names one such model, and says what to do.
        """
        if budget.cost_usd is None:
            return
        from helix_agents.agent.registry import AgentRegistry

        spenders = AgentRegistry((self,)).everyone() if budget.scope == "tree" else (self,)
        for each in spenders:
            check_prices(each.models, each.prices, subject, each.name)

    def check_runs_provider_tools(self, model: LLMAdapter) -> None:
        """Reject a model whose provider does not run the agent's `provider_tools`.

        Raises:
            DefinitionError: says why, and which models do.
        """
        refusal = refusal_of(model, self.provider_tools, beside_tools=bool(self.tool_specs))
        if refusal is not None:
            raise DefinitionError(f"Agent {self.name!r}", f"{refusal}.")

    @cached_property
    def companion_tools(self) -> tuple[Tool[..., Any], ...]:
        """The built-in tools for working with the agent's companions; empty if it has none."""
        return companion_tools(self.persistent_agents, f"Agent {self.name!r}")

    @cached_property
    def handoff_tools(self) -> tuple[HandoffTool, ...]:
        """The tools with which the agent hands its conversation over; empty if it hands over to no one."""
        return handoff_tools(self.handoffs, f"Agent {self.name!r}")

    @cached_property
    def skill_provider(self) -> SkillProvider | None:
        """Where the agent's skills come from; None if it has none."""
        return provider_of(self.skills)

    @cached_property
    def all_tools(self) -> tuple[Tool[..., Any], ...]:
        """Every tool the agent may call except `__finish__`: its own tools, and those of its capabilities, companions,
        handoffs, memory, skills and workspace."""
        bundled = (tool for bundle in self.capabilities for tool in bundle.tools)
        reading = () if self.skill_provider is None else skill_tools(self.skill_provider, self.workspace)
        working = () if self.workspace is None else self.workspace.tools
        made = (*self.companion_tools, *self.handoff_tools)
        return (*self.tools, *bundled, *made, *tools_of(self.memory), *reading, *working)

    def as_tool(
        self,
        *,
        input: Any = None,
        description: str | None = None,
        timeout: Duration | None = None,
        available: AvailabilityPredicate | None = None,
    ) -> Tool[..., Any]:
        """This agent as a tool for another agent; see `sub_agent_tool`."""
        from helix_agents.agent.sub_agents import sub_agent_tool

        return sub_agent_tool(self, input=input, description=description, timeout=timeout, available=available)

    def find_tool(self, name: str) -> Tool[..., Any] | None:
        """The tool that a model calls by this name; never `__finish__`."""
        return self._tools_by_name.get(name)

    @cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Everything the model may call, in the form it sees."""
        specs = tuple(tool.spec() for tool in self.all_tools)
        if self.output_type is None:
            return specs
        return (*specs, self.output_type.spec(strict=self.settings.strict_output or None))

    @cached_property
    def conditional_tools(self) -> tuple[Conditional, ...]:
        """The tools that are not offered in every step."""
        return tuple(Conditional(tool.name, tool.available) for tool in self.all_tools if tool.available is not None)

    def retries_of(self, name: str) -> int:
        """How many times per turn the model may correct its calls to this tool."""
        if name == FINISH_TOOL:
            return self.output_retries
        tool = self.find_tool(name)
        return self.retries if tool is None or tool.retries is None else tool.retries

    async def write_instructions(self, ctx: RunContext[AgentStateT, DepsT]) -> str:
        """The system prompt for this step.

        Raises:
            RuntimeError: the function raised something that is no decision and no error of this library; says what.
            TypeError: the function did not return text.
        """
        if isinstance(self.instructions, str):
            return self.instructions
        what = f"The instructions of {self.name!r}"
        try:
            written = cast("object", await call_quick(what, self.instructions, ctx))
        except HelixError:
            raise
        except Exception as problem:
            raise RuntimeError(f"{what} raised {type(problem).__name__}: {problem}") from problem
        if not isinstance(written, str):
            raise TypeError(f"{what} are a {type(written).__name__}; the function has to return a string")
        return written

    def check_output(self, result: Any, tool: str) -> JSON:
        """The output that a `finish_with` tool returned, in the form it is stored.

        Raises:
            ToolOutputError: it is not what the agent has to produce.
        """
        if self.output_type is not None:
            return self.output_type.check(result, tool)
        if not isinstance(result, str):
            raise ToolOutputError(tool, f"agent {self.name!r} produces text; give it output={type(result).__name__}")
        return result

    def load_output(self, stored: JSON) -> OutputT:
        """A stored output as the original object; raises like `OutputType.load`."""
        return cast("OutputT", stored) if self.output_type is None else self.output_type.load(stored)

    def draft(self, custom_state: Mapping[str, JSON]) -> StateDraft[AgentStateT]:
        """A draft of stored state for one tool, hook or step."""
        return StateDraft(self.state_type, custom_state)

    def initial_state(self, given: AgentStateT | Mapping[str, JSON] | None = None) -> dict[str, JSON]:
        """The state a new session starts with: the defaults, overridden by `given`.

        Raises:
            InvalidStateError: `given` does not fit the state type.
        """
        return self.state_type.initial(given)

    def load_state(
        self, custom_state: Mapping[str, JSON], from_version: int, *, most_bytes: int | None = None
    ) -> LoadedState:
        """Stored state in the form the present version needs. State that an earlier version wrote, or that no longer
        fits, goes through `migrate_state`; fields added since get their defaults. Keys that the type does not know are
        kept.

        Raises:
            StateSchemaChangedError: the state does not fit and `migrate_state` does not help, or the migrated state is
                larger than `most_bytes`, the most its store accepts. Nothing was written.
        """
        try:
            present = self._migrated(custom_state, from_version)
            defaults = self.state_type.dump(self.state_type.load(present))
        except InvalidStateError as problem:
            raise StateSchemaChangedError(self.name, self.version, from_version, problem.problem) from problem
        complete = {**present, **{key: value for key, value in defaults.items() if key not in present}}
        writes = difference(custom_state, complete)
        if writes and most_bytes is not None and (size := len(encode(complete))) > most_bytes:
            problem = f"it would have {size} bytes, but the store accepts at most {most_bytes}"
            raise StateSchemaChangedError(self.name, self.version, from_version, problem)
        return LoadedState(custom_state=complete, writes=writes)

    def check_writes(self, custom_state: Mapping[str, JSON], from_version: int, writes: StepWrites) -> None:
        """Reject writes to stored state that would leave state the agent cannot read.

        State that already does not fit may be in the middle of a repair, so a write may leave it unfit. The keys of an
        earlier version are that version's business, and nothing is known about a later version.

        Raises:
            InvalidStateError: the state would no longer fit.
        """
        if from_version > self.version:
            return
        if from_version == self.version:
            self.state_type.check_known(op.key for op in writes.ops if not isinstance(op, Delete))
        try:
            after = apply_writes(custom_state, writes.ops)
        except AppendToNonListError:
            # The store refuses it as well, and its state may have changed by then.
            return
        problem = self._misfit(after, from_version)
        if problem is not None and self._misfit(custom_state, from_version) is None:
            raise InvalidStateError(self.state_type.name, problem)

    def _misfit(self, custom_state: Mapping[str, JSON], from_version: int) -> str | None:
        """Why the agent could not read this state; None if it could."""
        try:
            if from_version == self.version:
                self.state_type.load(custom_state)
            else:
                self.load_state(custom_state, from_version)
        except (InvalidStateError, StateSchemaChangedError) as refused:
            return refused.problem
        return None

    @cached_property
    def _tools_by_name(self) -> dict[str, Tool[..., Any]]:
        return {tool.name: tool for tool in self.all_tools}

    def _migrated(self, custom_state: Mapping[str, JSON], from_version: int) -> dict[str, JSON]:
        stored = dict(custom_state)
        if self.migrate_state is None or (from_version >= self.version and self._fits(stored)):
            return stored
        try:
            migrated = self.migrate_state(decode_json(encode(stored)), from_version)
            if isinstance(migrated, self.state_type.python_type):
                return self.state_type.dump(migrated)
            if not isinstance(migrated, Mapping):
                raise InvalidStateError(self.state_type.name, f"migrate_state returned {type(migrated).__name__}")
            return jsonable(dict(cast("Mapping[str, JSON]", migrated)))
        except UnstorableValueError as problem:
            raise InvalidStateError(self.state_type.name, f"migrate_state returned {problem.reason}") from problem
        except InvalidStateError:
            raise
        except Exception as problem:
            reason = f"migrate_state raised {type(problem).__name__}: {problem}"
            raise InvalidStateError(self.state_type.name, reason) from problem

    def _fits(self, stored: Mapping[str, JSON]) -> bool:
        try:
            self.state_type.load(stored)
        except InvalidStateError:
            return False
        return True


AnyAgent: TypeAlias = Agent[Any, Any, Any]
"""An agent with any state, output and dependencies, for code that works with all of them."""
