"""A boss and its companions: what the scenarios of persistent agents share."""

from collections.abc import Awaitable, Callable
from typing import Any

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.companions import CompanionMode, PersistentAgent
from helix_agents.agent.tools import Tool, tool
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.llm.script import Call
from helix_agents.llm.scripted import call
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import SESSION, Gate, scripted, transcript, until


def spawn(kind: str = "helper", message: str = "Do it", name: str | None = None, id: str | None = None) -> Call:
    """The boss starts a companion."""
    given = {"agent": kind, "initialMessage": message} | ({} if name is None else {"name": name})
    return call("companion__spawnAgent", given, id=id)


def send(name: str, message: str, id: str | None = None) -> Call:
    """The boss sends a companion a message."""
    return call("companion__sendMessage", {"name": name, "message": message}, id=id)


def about(what: str, name: str, id: str | None = None) -> Call:
    """The boss asks for something about one companion: `getChildStatus`, `terminateChild` or `waitForResult`."""
    return call(f"companion__{what}", {"name": name}, id=id)


def boss(*script: Any, keeps: AnyAgent, mode: CompanionMode = "blocking", **fields: Any) -> Any:
    """An agent that keeps one kind of companion."""
    return scripted(script, fields, name="boss", persistent_agents=[PersistentAgent(keeps, mode=mode)])


def helper(*script: Any, **fields: Any) -> AnyAgent:
    """A companion."""
    return scripted(script, fields, name="helper", description="Helps.")


def busy(gate: Gate, *script: Any, **fields: Any) -> AnyAgent:
    """A companion whose tool `work` runs until the gate is opened."""

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    return helper(*script, tools=[work], **fields)


def pondering(gate: Gate) -> Tool[..., Any]:
    """A tool of the boss that runs until the gate is opened."""

    @tool
    async def ponder() -> str:
        """Ponder."""
        await gate.wait()
        return "pondered"

    return ponder


def careful(*script: Any, work: Callable[[], Awaitable[str]] | None = None, **fields: Any) -> AnyAgent:
    """A companion whose tool `deploy` needs a person's approval."""

    @tool(require_approval=True)
    async def deploy(env: str) -> str:
        """Deploy."""
        return f"deployed {env}" if work is None else await work()

    return helper(*script, tools=[deploy], **fields)


def waiting_for_helper(gate: Gate | None) -> AnyAgent:
    """A boss that starts a companion, which works until the gate is opened, and waits for it in its next turn. Without
    a gate it no longer has such a companion."""
    kinds = [PersistentAgent(scripted(["x"], {}, name="other"))]
    if gate is not None:
        kinds.insert(0, PersistentAgent(busy(gate, *WORKING), mode="non_blocking"))
    script = [spawn(), "Started.", about("waitForResult", "helper-1", id="wait"), "Fine."]
    return scripted(script, {}, name="boss", persistent_agents=kinds)


DEPLOYING = (call("deploy", {"env": "live"}, id="deploy_1"), "Deployed.", "Again.")
WORKING = (call("work", id="work_1"), "Worked.", "Again.")


def heard(request: ModelRequest) -> str:
    """A reply that repeats what its model was told last."""
    return f"heard {getattr(request.messages[-1], 'content', None)}"


async def companions(parts: Backend, session_id: str = SESSION) -> list[SubSessionRef]:
    """The companions a session has, oldest first."""
    return [ref for ref in await parts.state.get_sub_session_refs(session_id) if ref.mode == "persistent"]


async def only_companion(parts: Backend, session_id: str = SESSION) -> SubSessionRef:
    """The only companion of a session."""
    (ref,) = await companions(parts, session_id)
    return ref


async def until_ended(parts: Backend, child: str, status: str = "completed") -> None:
    """Wait until a companion's run has this status."""

    async def has_ended() -> bool:
        run = await parts.state.get_current_run(child)
        return run is not None and run.status == status

    await until(has_ended)


async def results(helix: Executor, session_id: str = SESSION) -> dict[str, Any]:
    """The outcome of each call, as the model read it; no call has two results."""
    found = [each for each in await transcript(helix, session_id) if isinstance(each, ToolMessage)]
    assert len({each.tool_call_id for each in found}) == len(found)
    return {each.tool_call_id: each.content for each in found}


async def notices(helix: Executor, session_id: str = SESSION) -> list[str]:
    """What the boss was told about companions that ended."""
    said = (each for each in await transcript(helix, session_id) if isinstance(each, UserMessage))
    return [str(each.content) for each in said if each.metadata.get("helix") == "companion_notice"]
