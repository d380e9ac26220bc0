"""What processes do that die in mid-conversation: their spans go into a file, as far as they came."""

from importlib import import_module
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from helix_agents.agent.agent import Agent
from helix_agents.agent.tools import tool
from helix_agents.llm.scripted import ScriptedModel, call
from helix_agents.ports.backend import open_backend
from helix_agents.testing.workers import Job
from helix_agents.tracing import OpenTelemetryHooks
from tests.recovery.conversation_jobs import LaterClock, die
from tests.tracing.pictures import FileExporter

MODULE = __name__


async def converse(job: Job, folder: str, life: int, runtime: str, address: str = "") -> Any:
    """Let a lead hand work to a worker, whose tool is the death of the first process; the next one goes on."""

    @tool
    async def work() -> str:
        """Work."""
        if life == 0:
            die()
        return "worked"

    worker = Agent(name="worker", model=ScriptedModel([call("work"), "Found."]), tools=[work], description="works")
    script = ScriptedModel([call("subagent__worker", {"message": "go"}), "Led."])
    lead = Agent(name="lead", model=script, tools=[worker.as_tool()])
    provider = TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path(folder) / "spans.jsonl")))
    own: dict[str, Any] = {}
    if runtime == "dbos":
        kind = import_module("helix_agents.runtimes.dbos.executor").DBOSAgentExecutor
        own = {"system_database_url": f"sqlite:///{folder}/dbos.db", "executor_id": f"life-{life}"}
    elif runtime == "temporal":
        temporal = import_module("helix_agents.runtimes.temporal")
        kind, options = temporal.TemporalAgentExecutor, temporal.TemporalOptions
        queue = f"tracing-{Path(folder).name}-{Path(folder).parent.name}"
        quick = options(heartbeat_seconds=1.0, task_seconds=2.0, sticky_seconds=1.0)
        own = {"address": address, "task_queue": queue, "prefix": queue, "temporal": quick}
    else:
        kind = import_module("helix_agents.runtimes.in_process").Executor
    async with await open_backend(f"sqlite:///{folder}/helix.db?synchronous=normal", clock=LaterClock(life)) as backend:
        parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        hooks = OpenTelemetryHooks(tracer_provider=provider)
        async with kind(**parts, **own, agents=[lead], hooks=hooks, janitor_seconds=None) as helix:
            if life == 0:
                await (await helix.execute(lead, "Go", "s-1")).result()
            await helix.recover()
            handle = await helix.get_handle(lead, "s-1")
            return None if handle is None else await handle.output()
