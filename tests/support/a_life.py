"""The life of a session, for tests that examine what a store is asked during it."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from helix_agents import (
    Agent,
    ApprovalAnswer,
    BranchPoint,
    Executor,
    PendingFilter,
    PersistentAgent,
    ScriptedModel,
    ToolAnswer,
    client_tool,
    tool,
)
from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.settings import Limits, StateSettings
from helix_agents.capabilities.values import shown_time
from helix_agents.capabilities.vault import Argon2Cost, Vault
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import StartRun, StepCommit
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.queued import QueueChange, QueuedTurn
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.schedules import Schedule
from helix_agents.domain.sessions import CreateSession, SessionFilter
from helix_agents.domain.usage import UsageFilter
from helix_agents.domain.webhooks import Delivery
from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing import call, reply


@tool(effect="once")
async def pay(amount: int) -> str:
    """Pay something."""
    return "paid"


@tool(require_approval=True)
async def sign(paper: str) -> str:
    """Sign something."""
    return "signed"


@client_tool
async def locate() -> str:
    """Where the user is."""
    raise NotImplementedError


def script(request: Any) -> Any:
    if request.agent_type != "boss" or request.step > 1:
        return "Done."
    asked = {
        "subagent__helper": {"message": "Help"},
        "companion__spawnAgent": {"agent": "expert", "initialMessage": "Stay"},
        "pay": {"amount": 1},
        "sign": {"paper": "x"},
        "locate": {},
    }
    return reply(calls=[call(name, given, id=f"{name}-{request.run_id}") for name, given in asked.items()])


async def live(backend: Backend, session_id: str) -> None:
    """A session delegates, pays, keeps a companion, waits for people, is swept, branched, rewound, listed, added up."""
    model = ScriptedModel(script)
    helper = Agent(name="helper", description="Helps.", model=model)
    expert = Agent(name="expert", description="Knows.", model=model)
    kept = [PersistentAgent(expert)]
    boss = Agent(name="boss", model=model, tools=[helper.as_tool(), pay, sign, locate], persistent_agents=kept)
    parts: dict[str, Any] = {
        "state": backend.state,
        "streams": backend.streams,
        "usage": backend.usage,
        "entries": backend.entries,
    }
    async with Executor(**parts, agents=[boss, helper, expert], janitor_seconds=None) as helix:
        for _ in range(2):
            await (await helix.execute(boss, "Go", session_id, user_id="ann", expires_in=3600)).result()
            for waiting in (await helix.list_pending(PendingFilter(session_id=session_id, states=("waiting",)))).items:
                answer = ApprovalAnswer(approved=True) if waiting.kind == "approval" else ToolAnswer(result="here")
                await helix.submit_tool_result(session_id, waiting.tool_call_id, answer)
            await helix.sweep()
            assert (await (await helix.resume(boss, session_id)).result()).status == "completed"
        checkpoint = (await helix.sessions.checkpoints(session_id)).items[-1].checkpoint_id
        point = BranchPoint(from_session_id=session_id, checkpoint_id=checkpoint)
        await (await helix.execute(boss, "Go", f"{session_id}-other", branch=point)).result()
        await helix.abort(f"{session_id}-other")
        await helix.rewind(session_id, checkpoint)
        for where in (
            SessionFilter(user_id="ann"),
            SessionFilter(root_session_id=session_id),
            SessionFilter(parent_session_id=session_id),
        ):
            assert (await helix.sessions.list(where)).total
        assert (await helix.list_pending(PendingFilter(user_id="ann"))).total == 0
        assert (await helix.list_pending(PendingFilter(root_session_id=session_id, states=("consumed",)))).total == 4
        assert await helix.sessions.count_running("ann") == 0
        assert (await backend.usage.get_usage_rollup(session_id)).sessions == 5
        for about in (UsageFilter(session_id=session_id), UsageFilter(root_session_id=session_id)):
            (entry, *_) = (await backend.usage.query_usage(about)).items
            assert (await backend.usage.query_usage(UsageFilter(run_id=entry.run_id))).total


async def end(backend: Backend, session_id: str) -> None:
    """The session is deleted, with its usage."""
    await backend.usage.delete_usage(session_id)
    await backend.state.delete_session(session_id)


async def be_automated(store: SessionStateStore, session_id: str) -> None:
    """A schedule is due; a run is sent messages, of which it takes one in; and a webhook is told of its end."""
    now, message = store.now_ms(), UserMessage(content="By the way")
    schedule = Schedule(
        schedule_id=session_id, agent="boss", messages=(message,), revision="1", user_id=session_id, next_at=now
    )
    await store.save_schedule(schedule)
    await store.save_schedule(replace(schedule, revision="2"), replaces="1")
    assert await store.find_schedule(session_id) in await store.list_due_schedules(now)
    assert (await store.list_schedules(user_id=session_id)).total == 1
    assert await store.delete_schedule(session_id)
    create = CreateSession(agent_type="boss")
    run = (await store.start_run(StartRun(session_id=session_id, run_id=session_id, create=create, tell=True))).run
    for name, steers in (("steers", True), ("waits", False)):
        turn = QueuedTurn(session_id=session_id, run_id=f"{session_id}-{name}", messages=(message,), steers=steers)
        assert await store.queue_turn(turn)
    assert await store.change_queued(session_id, f"{session_id}-waits", QueueChange(first=True))
    assert session_id in await store.list_queues(limit=200)
    commit = StepCommit(fence=run.fence, step=1, takes_messages=True)
    meta = CheckpointMeta(step_id="step-1", step_count=1)
    await store.save_state_and_promote_staging(session_id, await store.load_state(session_id), (), meta, commit=commit)
    assert await store.find_queued(session_id, f"{session_id}-steers")
    assert await store.drop_queued(session_id, f"{session_id}-waits")
    ended = await store.update_run_status(session_id, "completed", RunUpdate())
    assert ended in await store.list_untold(limit=200)
    owed = Delivery(
        delivery_id=session_id,
        webhook=session_id,
        event="turn.completed",
        session_id=session_id,
        run_id=session_id,
        created_at=now,
        next_at=now,
        revision="1",
    )
    assert await store.owe_deliveries(ended, [owed])
    assert await store.list_due_deliveries(session_id, now) == (owed,)
    assert await store.save_delivery(replace(owed, revision="2", state="delivered"), replaces="1")
    assert await store.forget_deliveries(now)
    await store.delete_session(session_id)


async def be_briefed(entries: EntryStore, folder: Path) -> None:
    """An agent asks what happened since now, and a new backup replaces an older one."""
    vault = Vault(folder / "vault.json", cost=Argon2Cost(memory_kib=64, passes=1, lanes=1))
    await vault.init("a long enough passphrase")
    limits = Limits(backups=1, daily_backups=0, weekly_backups=0, monthly_backups=0)
    gateway = Gateway(entries, StateSettings(directory=folder / "files", vault=vault, limits=limits))
    operator = Caller(agent="boss", face="operator")
    await gateway.call(operator, "state.briefing.generate", {"since": shown_time(entries.now_ms())})
    for _ in range(2):
        await gateway.call(operator, "state.backup.create", {})
    assert (await gateway.call(operator, "state.backup.list", {}))["count"] == 1
    await gateway.close()
