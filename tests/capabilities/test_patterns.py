"""Every common pattern of every capability, run as it is written."""

from typing import Any

from helix_agents.capabilities.catalogue import STATE
from helix_agents.domain.capability_errors import VersionConflict
from tests.capabilities.worlds import World, approved

PATTERNS = {(each.name, pattern.description) for each in STATE for pattern in each.patterns}
PROVEN: set[tuple[str, str]] = set()


def proven(name: str, description: str) -> None:
    assert (name, description) in PATTERNS, f"there is no pattern {description!r} of {name}"
    PROVEN.add((name, description))


async def test_every_common_pattern_works_as_written(each_world: World) -> None:
    PROVEN.clear()
    async with each_world.open("my-agent") as plain:
        state = await plain.with_session()
        await session_patterns(state.call)
        await persistent_patterns(state.call)
        await shared_patterns(state.call, each_world)
        await snapshot_patterns(state.call)
        await briefing_patterns(state.call)
        await backup_patterns(state, each_world)
    assert PROVEN == PATTERNS


async def session_patterns(call: Any) -> None:
    assert not (await call("state.session.get", key="analysis.result"))["found"]
    await call("state.session.set", key="analysis.result", value={"mean": 2.5})
    proven("state.session.get", "Check for cached computation result")
    assert (await call("state.session.get", key="analysis.result"))["value"] == {"mean": 2.5}
    proven("state.session.set", "Cache a computation result for reuse within session")
    await call("state.session.set", key="context.last_action", value="searched")
    assert (await call("state.session.get", key="context.last_action"))["value"] == "searched"
    proven("state.session.get", "Read conversation context")
    for key in ("task.current", "task.temp_data"):
        await call("state.session.set", key=key, value=key)
    assert (await call("state.session.list", prefix="task."))["keys"] == ["task.current", "task.temp_data"]
    assert (await call("state.session.list"))["count"] == 4
    proven("state.session.list", "Discover all stored data")
    assert (await call("state.session.delete", key="task.current"))["deleted"]
    assert (await call("state.session.delete", key="task.temp_data"))["previous_value"] == "task.temp_data"
    proven("state.session.delete", "Clean up after finishing a task")
    assert await call("state.session.clear") == {"removed_count": 2}
    proven("state.session.clear", "Reset session state for a fresh start")


async def persistent_patterns(call: Any) -> None:
    await call("state.persistent.set", key="progress.checkpoint", value={"step": 5, "total": 10})
    proven("state.persistent.set", "Save progress checkpoint")
    assert (await call("state.persistent.get", key="progress.checkpoint"))["value"]["step"] == 5
    proven("state.persistent.get", "Resume from where a previous session left off")
    await call("state.persistent.set", key="preferences.output_format", value="json")
    proven("state.persistent.set", "Store configuration that persists across sessions")
    for number in range(1, 6):
        await call("state.persistent.set", key="config", value=number)
        await call("state.persistent.set", key="config.threshold", value=number / 10)
    assert (await call("state.persistent.get", key="config", version=3))["value"] == 3
    assert (await call("state.persistent.get", key="config"))["value"] == 5
    proven("state.persistent.get", "Read a specific version for comparison")
    history = await call("state.persistent.history", key="config.threshold", limit=5)
    assert [each["value"] for each in history["versions"]] == [0.5, 0.4, 0.3, 0.2, 0.1]
    proven("state.persistent.history", "Review recent changes to a configuration key")
    for key in ("task.completed.1", "task.completed.2", "task.open", "deploy.last"):
        await call("state.persistent.set", key=key, value=key)
    everything = await call("state.persistent.list")
    assert everything["total_size_bytes"] == sum(each["size_bytes"] for each in everything["entries"])
    proven("state.persistent.list", "Check quota usage")
    assert [each["key"] for each in (await call("state.persistent.list", prefix="deploy."))["entries"]] == [
        "deploy.last"
    ]
    proven("state.persistent.list", "Find keys in a namespace")
    assert (await call("state.persistent.query", prefix="task."))["count"] == 3
    proven("state.persistent.query", "Load all task state at once")
    found = await call("state.persistent.query", prefix="config.")
    assert {each["key"]: each["value"] for each in found["entries"]} == {"config.threshold": 0.5}
    proven("state.persistent.query", "Batch read configuration")
    for each in (await call("state.persistent.list", prefix="task.completed."))["entries"]:
        assert (await call("state.persistent.delete", key=each["key"]))["deleted"]
    proven("state.persistent.delete", "Clean up completed task data")


async def shared_patterns(call: Any, world: World) -> None:
    await call("state.shared.set", key="config.mode", value="production", expected_version=0)
    proven("state.shared.set", "Create a new shared key")
    await call("state.shared.set", key="config.shared_threshold", value=7, expected_version=0)
    found = await call("state.shared.get", key="config.shared_threshold")
    assert (found["value"], found["version"]) == (7, 1)
    proven("state.shared.get", "Read shared configuration")
    await call("state.shared.set", key="counter", value=0, expected_version=0)
    async with world.open("other") as other:
        for name in ("state.shared.get", "state.shared.set"):
            entry = await call("state.shared.get", key="counter")
            await other.shared.apply("counter", lambda value: value + 10)
            while True:
                try:
                    value = entry["value"] + 1
                    await call("state.shared.set", key="counter", value=value, expected_version=entry["version"])
                except VersionConflict:
                    entry = await call("state.shared.get", key="counter")
                else:
                    break
            proven(
                name,
                "Read-modify-write with optimistic locking" if name.endswith("get") else "Atomic read-modify-write",
            )
        assert (await call("state.shared.get", key="counter"))["value"] == 22
        await call("state.shared.watch", prefix="config.")
        await other.shared.set("config.mode", "test", expected_version=1)
    [message] = (await call("inbox.read"))["messages"]
    assert (message["type"], message["key"], message["owner_agent"]) == ("state.shared.changed", "config.mode", "other")
    assert (await call("state.shared.get", key=message["key"]))["value"] == "test"
    proven("state.shared.watch", "React to shared configuration changes")
    assert (await call("inbox.read", ack=[message["id"]]))["count"] == 0
    assert (await call("state.shared.list", prefix="config."))["count"] == 2
    proven("state.shared.list", "Discover shared configuration")
    await call("state.shared.set", key="task.shared_progress", value=1, expected_version=0)
    assert (await call("state.shared.delete", key="task.shared_progress"))["deleted"]
    proven("state.shared.delete", "Clean up after a shared task completes")


async def snapshot_patterns(call: Any) -> None:
    before = await call("state.snapshot.create")
    await call("state.persistent.set", key="risky", value=1)
    proven("state.snapshot.create", "Checkpoint before a risky operation")
    after = await call("state.snapshot.create")
    listed = (await call("state.snapshot.list"))["snapshots"]
    assert [each["snapshot_id"] for each in listed] == [after["snapshot_id"], before["snapshot_id"]]
    proven("state.snapshot.list", "Find the most recent snapshot")
    one, two = [
        (await call("state.snapshot.load", snapshot_id=each["snapshot_id"]))["snapshot"] for each in (before, after)
    ]
    keys = [next(scope["keys"] for scope in each["state"] if scope["scope"] == "agent:my-agent") for each in (one, two)]
    assert keys[1] == keys[0] + 1
    proven("state.snapshot.load", "Compare system state before and after a change")


async def briefing_patterns(call: Any) -> None:
    first = (await call("state.briefing.generate"))["briefing"]
    assert first["summary"].startswith("Since your last activity: ")
    detailed = (await call("state.briefing.generate", detail_level="detailed"))["briefing"]
    assert len(detailed["state_changes"]) == min(first["state_changes"], 50)
    proven("state.briefing.generate", "Reconnect and catch up")
    window = (await call("state.briefing.generate", since="2026-03-25T14:00:00Z"))["briefing"]
    assert window["since"] == "2026-03-25T14:00:00.000Z"
    proven("state.briefing.generate", "Check activity over a specific window")


async def backup_patterns(state: Any, world: World) -> None:
    made = (await approved(state, "state.backup.create")).result
    await state.persistent.set("config", "upgraded and broken")
    restored = (await approved(state, "state.backup.restore", backup_id=made["backup_id"])).result
    assert restored["agents_restored"] == ["my-agent"]
    assert (await state.persistent.get("config")).value == 5
    proven("state.backup.create", "Full system backup before upgrade")
    listed = (await state.call("state.backup.list"))["backups"]
    assert (listed[0]["backup_id"], listed[-1]["backup_id"]) == (restored["pre_restore_backup_id"], made["backup_id"])
    proven("state.backup.list", "Find the most recent backup")
    await approved(state, "state.backup.restore", backup_id=listed[-1]["backup_id"])
    proven("state.backup.restore", "Full system restore")
    own = (await approved(state, "state.backup.create", agent="my-agent")).result
    assert own["scope"] == "agent:my-agent"
    proven("state.backup.create", "Back up a specific agent before changes")
    row = await approved(state, "state.backup.restore", backup_id=made["backup_id"], agent="my-agent")
    assert (row.result["agents_restored"], row.result["shared_state_restored"]) == (["my-agent"], False)
    proven("state.backup.restore", "Restore a single agent")
    exported = await approved(state, "state.backup.export", backup_id=own["backup_id"], path=f"{world.folder}/out/")
    assert exported.result["size_bytes"] == own["file_size_bytes"]
    proven("state.backup.export", "Export for off-site storage")
