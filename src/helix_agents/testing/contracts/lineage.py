"""The contract of history: stored once, shared with branches, and never changed for any of its readers."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.checkpoints import BEGINNING, CheckpointMeta
from helix_agents.domain.errors import CheckpointNotFoundError, SessionAlreadyExistsError, SessionNotFoundError
from helix_agents.domain.messages import EDITED_INPUT, ToolMessage, UserMessage
from helix_agents.domain.pending import UNKNOWN_OUTCOME, ApprovalAnswer
from helix_agents.domain.records import JSON, decode_json, encode
from helix_agents.domain.session_changes import held_by
from helix_agents.domain.sessions import BranchPoint, CreateSession, Holder, SessionFilter, SessionState, WorkspaceRef
from helix_agents.domain.transcript import NOT_EXECUTED, OUTCOME_UNKNOWN, RUN_STOPPED, held_results
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.observation import observe
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    SESSION,
    answer,
    append_to,
    asked,
    child_ref,
    commit,
    effect,
    fence_of,
    said,
    set_key,
    staged,
    start,
    step_meta,
    suspend,
    waiting,
)
from helix_agents.testing.seams import CountingSeam


class LineageContract(StoreContract):
    """Branching and rewinding."""

    @proves("lineage.branch-takes")
    async def test_a_branch_takes_messages_state_agent_and_user(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        branch = await _branch(store)
        assert branch == await store.load_state("branch")
        assert (branch.agent_type, branch.user_id, branch.custom_state) == ("w", "u", {"list": [1, 2, 3]})
        assert (branch.version, branch.message_count, branch.status) == (1, 3, "active")
        assert (branch.parent_session_id, branch.root_session_id) == (None, "branch")
        assert await store.load_transcript("branch") == await store.load_transcript(SESSION)
        checkpoint = await store.get_latest_checkpoint("branch")
        assert checkpoint is not None
        assert (checkpoint.checkpoint_id, checkpoint.source) == (branch.checkpoint_id, "save")
        assert checkpoint.message_count == 3
        assert await store.load_checkpoint_state("branch", checkpoint.checkpoint_id) == {"list": [1, 2, 3]}

    @proves("lineage.branch-takes")
    async def test_a_branch_knows_whose_workspace_its_source_has(self, store: SessionStateStore) -> None:
        of_source = WorkspaceRef(provider_id="p", ref="r", owner="source", at="2-x")
        await store.create_session("source", CreateSession(workspace_ref=of_source))
        assert (await _branch(store, source="source")).workspace_ref == of_source
        assert (await store.load_state("branch")).workspace_ref == of_source

    @proves("lineage.branch-leaves-behind")
    async def test_a_branch_leaves_everything_else_behind(self, store: SessionStateStore) -> None:
        options = CreateSession(tags=("t",), metadata={"k": "v"}, expires_at=5, stream_id="stream", mode="standard")
        await start(store, create=options)
        await suspend(store, 1, waiting(store, "call-1"), refs=(child_ref("child"),))
        await store.submit_answer(answer("call-1"))
        branch = await _branch(store)
        assert (branch.tags, branch.metadata, branch.expires_at, branch.stream_id) == ((), {}, None, None)
        assert (branch.pending_client_tool_calls, branch.completed_client_tool_calls) == ({}, {})
        assert (branch.suspension_context, branch.current_run_id, branch.step_count) == (None, None, 0)
        assert (await store.list_runs("branch")).total == 0
        assert await store.get_sub_session_refs("branch") == ()
        assert await store.get_pending_call("branch", "call-1") is None

    @proves("lineage.branch-at-checkpoint")
    async def test_a_branch_at_a_checkpoint_is_exactly_that(self, store: SessionStateStore) -> None:
        checkpoints = await _three_steps(store)
        for number, checkpoint in enumerate(checkpoints, start=1):
            branch = await _branch(store, f"b-{number}", checkpoint_id=checkpoint)
            assert branch.custom_state == {"list": list(range(1, number + 1))}
            assert await _texts(store, f"b-{number}") == [f"m{n}" for n in range(1, number + 1)]

    @proves("lineage.branch-at-message")
    async def test_a_branch_at_a_message_has_the_newest_state_not_later(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION, CreateSession(custom_state={"initial": True}))
        await store.append_messages(SESSION, [said("m1"), said("m2")])
        await store.merge_custom_state(SESSION, set_key("at", 2))
        await store.save_state(SESSION, await store.load_state(SESSION))
        await store.append_messages(SESSION, [said("m3")])
        await store.merge_custom_state(SESSION, set_key("at", 3))
        await store.save_state(SESSION, await store.load_state(SESSION))
        expected = [{"initial": True}, {"initial": True}, {"initial": True, "at": 2}, {"initial": True, "at": 3}]
        for count, state in enumerate(expected):
            branch = await _branch(store, f"b-{count}", message_count=count)
            assert (branch.message_count, branch.custom_state) == (count, state)

    @proves("lineage.branch-at-message")
    async def test_a_branch_at_a_message_has_no_state_of_what_the_session_left_behind(
        self, store: SessionStateStore
    ) -> None:
        first, *_ = await _three_steps(store)
        await start(store, run_id="r-2", rewind_to=first)
        await store.merge_custom_state(SESSION, append_to("list", "merged"))
        await store.create_checkpoint(SESSION, step_meta())
        await commit(store, fence=fence_of("r-2"), messages=[said("n2")])
        await start(store, run_id="r-3", rewind_to=first, append_messages=(said("k2"), said("k3")))
        await store.merge_custom_state(SESSION, append_to("list", "later"))
        for count in (1, 2, 3):
            branch = await _branch(store, f"b-{count}", message_count=count)
            assert branch.custom_state == {"list": [1]}
        await _three_steps(store, "cut")
        await store.truncate_messages("cut", 1)
        await store.append_messages("cut", [said("n2"), said("n3")])
        for count in (1, 2, 3):
            branch = await _branch(store, f"c-{count}", source="cut", message_count=count)
            assert branch.custom_state == {"list": [1]}
        await store.create_session("at-once")
        await store.append_messages("at-once", [said("m1")])
        points: list[str] = []
        for number in (1, 2):
            await store.merge_custom_state("at-once", append_to("list", number))
            points.append((await store.create_checkpoint("at-once", step_meta())).checkpoint_id)
        await start(store, "at-once", "r-4", rewind_to=points[0], append_messages=(said("n2"),))
        assert (await _branch(store, source="at-once", message_count=2)).custom_state == {"list": [1]}

    @proves("lineage.branch-heals-open-calls")
    async def test_calls_open_at_the_end_are_answered_as_not_executed(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        answered = ToolMessage(tool_call_id="c-1", tool_name="tool", content="done")
        await store.append_messages(SESSION, [said("go"), asked("c-1", "c-2"), answered])
        whole = await _branch(store)
        *_, last = await store.load_transcript("branch")
        assert whole.message_count == last.sequence == 4
        assert isinstance(last.message, ToolMessage)
        assert (last.message.tool_call_id, last.message.code, last.message.error) == ("c-2", NOT_EXECUTED, True)
        earlier = await _branch(store, "earlier", message_count=2)
        rows = await store.load_transcript("earlier", after=2)
        assert earlier.message_count == 4
        assert [getattr(row.message, "tool_call_id", None) for row in rows] == ["c-1", "c-2"]
        assert await store.get_message_count(SESSION) == 3

    @proves("lineage.rewind-is-exact")
    async def test_calls_open_where_a_rewind_leads_are_answered_before_anything_new(
        self, store: SessionStateStore
    ) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, [said("go"), asked("c-1", "c-2")])
        open_there = await store.create_checkpoint(SESSION, CheckpointMeta(step_id="step-1", step_count=1))
        await store.append_messages(SESSION, [ToolMessage(tool_call_id="c-1", tool_name="tool", content="done")])
        await start(store, run_id="r-2", rewind_to=open_there.checkpoint_id, append_messages=(said("again"),))
        rows = await store.load_transcript(SESSION, after=2)
        assert [getattr(row.message, "tool_call_id", None) for row in rows] == ["c-1", "c-2", None]

    @proves("lineage.branch-keeps-held-results")
    async def test_results_that_an_open_step_holds_are_kept_where_it_is_left(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("go"),))
        replies = [replace(asked("c-1", "c-2", "c-3"), id=step_meta().step_id)]
        points: list[str] = []
        for number, call in enumerate(("c-1", "c-2")):
            done = staged(call, message=_done(call))
            writes = append_to("list", call)
            committed = await commit(
                store, round=number, messages=replies, writes=writes, stage=(done,), promote_staging=False
            )
            points.append(committed.checkpoint_id)
            replies = []
            clock.advance(1)
        await store.stage_changes(SESSION, staged("c-3", set_key("n", 1), message=_done("c-3")))
        expected = [{"c-1": "done"}, {"c-1": "done", "c-2": "done"}]
        for number, (point, known) in enumerate(zip(points, expected, strict=True)):
            branch = await _branch(store, f"b-{number}", checkpoint_id=point)
            assert branch.custom_state == {"list": list(known)}
            assert await _results(store, f"b-{number}") == {"c-1": None, "c-2": None, "c-3": None} | known
        await _branch(store, "at-the-end")
        assert await _results(store, "at-the-end") == {**expected[1], "c-3": None}
        await start(store, run_id="r-2", rewind_to=points[0])
        assert await _results(store, SESSION) == {**expected[0], "c-2": None, "c-3": None}
        assert not await store.has_staged_changes(SESSION)

    @proves("lineage.branch-keeps-held-results")
    async def test_results_that_a_step_held_are_kept_where_it_was_open_and_is_over(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("go"),))
        reply = replace(asked("c-1", "c-2", "c-3"), id=step_meta().step_id)
        points: list[str] = []
        for number, call in enumerate(("c-1", "c-2")):
            first = [] if number else [reply]
            stage = (staged(call, message=_done(call)),)
            committed = await commit(store, round=number, messages=first, stage=stage, promote_staging=False)
            points.append(committed.checkpoint_id)
            clock.advance(1)
        held = held_results(await store.get_staged_changes(SESSION, step_meta().step_id))
        await commit(store, round=2, messages=[held["c-1"], held["c-2"], _done("c-3")])
        await commit(store, 2, messages=[asked("c-4"), _done("c-4")])
        expected = [{"c-1": "done", "c-2": None, "c-3": None}, {"c-1": "done", "c-2": "done", "c-3": None}]
        for number, (point, results) in enumerate(zip(points, expected, strict=True)):
            await _branch(store, f"b-{number}", checkpoint_id=point)
            assert await _results(store, f"b-{number}") == results
        await _branch(store, "in-the-middle", message_count=2)
        assert await _results(store, "in-the-middle") == expected[1]
        await start(store, run_id="r-2", rewind_to=points[0])
        assert await _results(store, SESSION) == expected[0]
        await start(store, run_id="r-3", rewind_to=points[1])
        assert await _results(store, SESSION) == expected[1]

    @proves("lineage.branch-keeps-held-results")
    async def test_results_that_a_step_held_are_there_for_who_comes_back_to_it(self, store: SessionStateStore) -> None:
        await start(store, append_messages=(said("go"),))
        reply = replace(asked("c-1", "c-2"), id=step_meta().step_id)
        done = staged("c-1", message=_done("c-1"))
        there = (await commit(store, messages=[reply], stage=(done,), promote_staging=False)).checkpoint_id
        for number in (2, 3):
            await start(store, run_id=f"back-{number}", rewind_to=BEGINNING)
            assert await store.get_message_count(SESSION) == 0
            await start(store, run_id=f"forth-{number}", rewind_to=there)
            assert await _results(store, SESSION) == {"c-1": "done", "c-2": None}
            assert await store.get_message_count(SESSION) == 4

    @proves("lineage.branch-tells-begun-calls")
    async def test_calls_that_a_child_works_on_are_cut_short_where_they_are_left(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("go"),))
        before = (await commit(store, messages=[asked("c-1", "c-2")], promote_staging=False)).checkpoint_id
        clock.advance(1)
        await store.add_sub_session_refs(SESSION, [child_ref("child", "c-1")])
        there = (await commit(store, round=1, promote_staging=False)).checkpoint_id
        await commit(store, round=2, messages=[_done("c-1"), _done("c-2")])
        await _branch(store, "before", checkpoint_id=before)
        assert await _codes(store, "before") == {"c-1": NOT_EXECUTED, "c-2": NOT_EXECUTED}
        await _branch(store, "there", checkpoint_id=there)
        await start(store, run_id="r-2", rewind_to=there)
        assert await _codes(store, "there") == await _codes(store, SESSION) == {"c-1": RUN_STOPPED, "c-2": NOT_EXECUTED}

    @proves("lineage.branch-tells-begun-calls")
    async def test_calls_that_nobody_knows_the_outcome_of_are_unknown_where_they_are_left(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("go"),))
        reply = replace(asked("c-1", "c-2"), id=step_meta().step_id)
        approvals = [waiting(store, call, kind="approval") for call in ("c-1", "c-2")]
        points = [(await commit(store, messages=[reply], pending=approvals, promote_staging=False)).checkpoint_id]
        for number in (1, 2):
            clock.advance(1)
            await store.submit_answer(replace(answer("c-1"), answer=ApprovalAnswer(approved=True)))
            await store.begin_effect(effect("c-1", f"worker-{number}", consume_answer=True, rerun=True, lease_ms=0))
            clock.advance(1)
            about: dict[str, Any] = {"kind": "approval", "reason": UNKNOWN_OUTCOME, "edited": True, "input": number}
            question = waiting(store, "c-1", **about)
            committed = await commit(store, round=number, pending=(question,), promote_staging=False)
            points.append(committed.checkpoint_id)
        open_step = {"c-1": OUTCOME_UNKNOWN, "c-2": NOT_EXECUTED}
        expected = [{"c-1": NOT_EXECUTED, "c-2": NOT_EXECUTED}, open_step, open_step]

        async def check(name: str) -> None:
            for number, (point, codes) in enumerate(zip(points, expected, strict=True)):
                await _branch(store, f"{name}-{number}", checkpoint_id=point)
                assert await _codes(store, f"{name}-{number}") == codes

        await check("open")
        unknown, _ = await _tool_messages(store, "open-2")
        assert unknown.metadata[EDITED_INPUT] == 2
        await _branch(store, "at-the-end")
        assert await _codes(store, "at-the-end") == open_step
        await _branch(store, "of-a-branch", source="at-the-end", message_count=2)
        assert await _codes(store, "of-a-branch") == open_step
        done = [_done("c-1"), _done("c-2")]
        await commit(store, round=3, messages=done, consume=("c-1", "c-2"), forget_effects=("c-1",))
        await check("over")
        await start(store, run_id="r-2", rewind_to=points[2])
        assert await _codes(store, SESSION) == open_step
        await start(store, run_id="r-3", rewind_to=points[0])
        assert await _codes(store, SESSION) == expected[0]

    @proves("lineage.branch-tells-begun-calls")
    async def test_a_call_is_not_taken_for_another_that_had_its_id(self, store: SessionStateStore) -> None:
        await start(store, append_messages=(said("go"),))
        about: dict[str, Any] = {"kind": "approval", "reason": UNKNOWN_OUTCOME}
        reply = replace(asked("c-1"), id=step_meta().step_id)
        await suspend(store, 1, waiting(store, "c-1", **about), messages=[reply], promote_staging=False)
        await start(store, run_id="r-2", rewind_to=BEGINNING, append_messages=(said("again"),))
        reply = replace(asked("c-1"), id=step_meta(run_id="r-2").step_id)
        await commit(store, fence=fence_of("r-2"), messages=[reply], promote_staging=False)
        await _branch(store)
        assert await _codes(store, "branch") == {"c-1": NOT_EXECUTED}

    @proves("lineage.branch-tells-begun-calls")
    async def test_calls_that_the_ledger_has_begun_are_unknown_where_they_are_left(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("go"),))
        before = (await commit(store, messages=[asked("c-1", "c-2")], promote_staging=False)).checkpoint_id
        clock.advance(1)
        await store.begin_effect(effect("c-1"))
        there = (await store.create_checkpoint(SESSION, step_meta())).checkpoint_id
        await _branch(store, "before", checkpoint_id=before)
        assert await _codes(store, "before") == {"c-1": NOT_EXECUTED, "c-2": NOT_EXECUTED}
        await _branch(store, "there", checkpoint_id=there)
        await _branch(store, "at-the-end")
        expected = {"c-1": OUTCOME_UNKNOWN, "c-2": NOT_EXECUTED}
        assert await _codes(store, "there") == await _codes(store, "at-the-end") == expected

    @proves("lineage.branch-tells-begun-calls")
    async def test_a_result_that_the_ledger_has_is_kept_where_its_call_is_left(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("go"),))
        reply = replace(asked("c-1", "c-2"), id=step_meta().step_id)
        question = waiting(store, "c-1", kind="approval", reason=UNKNOWN_OUTCOME)
        await commit(store, messages=[reply], pending=(question,), promote_staging=False)
        clock.advance(1)
        await store.begin_effect(effect("c-1", rerun=True))
        begun = (await store.create_checkpoint(SESSION, step_meta())).checkpoint_id
        clock.advance(1)
        await store.finish_effect(SESSION, "c-1", "worker-1", {"message": decode_json(encode(_done("c-1")))})
        there = (await store.create_checkpoint(SESSION, step_meta())).checkpoint_id
        await _branch(store, "begun", checkpoint_id=begun)
        assert await _codes(store, "begun") == {"c-1": OUTCOME_UNKNOWN, "c-2": NOT_EXECUTED}
        await _branch(store, "there", checkpoint_id=there)
        await _branch(store, "at-the-end")
        for name in ("there", "at-the-end"):
            known, _ = await _tool_messages(store, name)
            assert (known.content, known.error) == (_done("c-1").content, False)

    @proves("lineage.of-its-version")
    async def test_a_session_that_goes_back_is_of_the_version_that_its_state_was_of_there(
        self, store: SessionStateStore
    ) -> None:
        await start(store, append_messages=(said("one"),))
        one = (await commit(store)).checkpoint_id
        await start(store, run_id="r-2", agent_version=2)
        two = (await commit(store, fence=fence_of("r-2"))).checkpoint_id
        assert (await store.load_state(SESSION)).agent_version == 2
        for turn, (there, version) in enumerate(((one, 1), (two, 2), (BEGINNING, 1), (two, 2)), 3):
            assert (await _branch(store, f"branch-{turn}", checkpoint_id=there)).agent_version == version
            await start(store, run_id=f"r-{turn}", rewind_to=there)
            assert (await store.load_state(SESSION)).agent_version == version

    @proves("lineage.of-its-holder")
    async def test_a_session_that_was_handed_over_says_so_and_goes_back_to_who_had_it_there(
        self, store: SessionStateStore
    ) -> None:
        await start(store, append_messages=(said("one"),))
        one = (await commit(store)).checkpoint_id
        before = await store.load_state(SESSION)
        handed = held_by(before, Holder("checker", 7), until=before.version)
        fields = {name: getattr(handed, name) for name in ("held_by", "agent_version", "earlier_versions")}
        two = (await commit(store, step=2, state=fields, messages=[said("two")])).checkpoint_id
        three = (await commit(store, step=3, messages=[said("three")])).checkpoint_id
        found = await store.find_session(SESSION)
        assert found is not None
        listed = (await store.list_sessions(SessionFilter(agent_type=before.agent_type))).items
        assert [(each.agent_type, each.held_by) for each in (found, *listed)] == [(before.agent_type, "checker")] * 2
        points = ((BEGINNING, None), (one, None), (two, "checker"), (three, "checker"))
        for turn, (there, holder) in enumerate((*points, points[1], points[2]), 2):
            branch = await _branch(store, f"branch-{turn}", checkpoint_id=there)
            assert (branch.held_by, branch.agent_version) == (holder, 1 if holder is None else 7)
            await start(store, session_id=branch.session_id, run_id=f"b-{turn}", rewind_to=BEGINNING)
            assert (await store.load_state(branch.session_id)).held_by is None
            await start(store, run_id=f"r-{turn}", rewind_to=there)
            now = await store.load_state(SESSION)
            assert (now.agent_type, now.held_by) == (before.agent_type, holder)
        assert [(await _branch(store, f"at-{count}", message_count=count)).held_by for count in (1, 2)] == [
            None, "checker"
        ]  # fmt: skip

    @proves("lineage.of-its-version", "lineage.branch-at-message")
    async def test_a_branch_at_a_message_is_of_the_version_that_its_state_was_of_there(
        self, store: SessionStateStore
    ) -> None:
        for turn in (1, 2, 3):
            await start(store, run_id=f"r-{turn}", agent_version=turn)
            messages, fence = [said(f"m{turn}")], fence_of(f"r-{turn}")
            await commit(store, messages=messages, fence=fence, writes=set_key("of", turn))
        await _branch(store, "b", message_count=2)
        await store.append_messages("b", [said("b3")])
        await _branch(store, "c", source="b")
        for source, most in ((SESSION, 3), ("b", 2), ("c", 2)):
            for count in (1, 2, 3):
                branch = await _branch(store, f"{source}-{count}", source=source, message_count=count)
                assert branch.agent_version == branch.custom_state["of"] == min(count, most)
        await store.delete_session(SESSION)
        branch = await _branch(store, "gone", source="b", message_count=1)
        assert branch.agent_version == branch.custom_state["of"] == 2
        await start(store, session_id="b", run_id="r-b", rewind_to=BEGINNING)
        back = await store.load_state("b")
        assert back.agent_version == back.custom_state["of"] == 2

    @proves("lineage.branch-is-apart")
    async def test_source_and_branch_go_their_own_ways(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        await _branch(store, message_count=2)
        await store.append_messages(SESSION, [said("source")])
        await store.append_messages("branch", [said("branch")])
        await store.merge_custom_state(SESSION, append_to("list", "source"))
        await store.merge_custom_state("branch", append_to("list", "branch"))
        assert await _texts(store, SESSION) == ["m1", "m2", "m3", "source"]
        assert await _texts(store, "branch") == ["m1", "m2", "branch"]
        assert (await store.load_state(SESSION)).custom_state == {"list": [1, 2, 3, "source"]}
        assert (await store.load_state("branch")).custom_state == {"list": [1, 2, "branch"]}
        assert [row.sequence for row in await store.load_transcript("branch")] == [1, 2, 3]

    @proves("lineage.branch-survives-its-source")
    @pytest.mark.parametrize("what", ["truncated", "rewound", "deleted", "deleted and made again"])
    async def test_what_happens_to_the_source_leaves_the_branch_whole(
        self, store: SessionStateStore, what: str
    ) -> None:
        checkpoints = await _three_steps(store)
        await _branch(store, message_count=2)
        await _branch(store, "at-end")
        before = await observe(store, "branch", "at-end")
        match what:
            case "truncated":
                await store.truncate_messages(SESSION, 1)
                await store.append_messages(SESSION, [said("other")])
            case "rewound":
                await start(store, run_id="r-2", rewind_to=checkpoints[0], append_messages=(said("other"),))
            case "deleted":
                await store.delete_session(SESSION)
            case _:
                await store.delete_session(SESSION)
                await store.create_session(SESSION)
                await store.append_messages(SESSION, [said("other")])
        await store.vacuum()
        assert await observe(store, "branch", "at-end") == before
        await store.append_messages("branch", [said("more")])
        assert await _texts(store, "branch") == ["m1", "m2", "more"]

    @proves("lineage.source-survives-its-branch")
    async def test_deleting_a_branch_leaves_the_source_whole(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        before = await observe(store, SESSION)
        await _branch(store, message_count=2)
        await store.append_messages("branch", [said("branch")])
        await store.delete_session("branch")
        await store.vacuum()
        assert await observe(store, SESSION) == before

    @proves("lineage.branch-of-a-branch", "lineage.branch-survives-its-source")
    async def test_a_branch_of_a_branch_outlives_both(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        await _branch(store, message_count=2)
        await store.append_messages("branch", [said("b3"), said("b4")])
        await _branch(store, "early", source="branch", message_count=1)
        await _branch(store, "late", source="branch", message_count=3)
        await store.delete_session("branch")
        await store.delete_session(SESSION)
        await store.vacuum()
        assert await _texts(store, "early") == ["m1"]
        assert await _texts(store, "late") == ["m1", "m2", "b3"]
        await _branch(store, "latest", source="late")
        await store.delete_session("late")
        assert await _texts(store, "latest") == ["m1", "m2", "b3"]
        assert (await store.load_state("latest")).custom_state == {"list": [1, 2]}

    @proves("lineage.branch-of-a-branch", "lineage.branch-at-message")
    async def test_a_branch_at_a_message_from_before_its_source_began_has_the_state_of_then(
        self, store: SessionStateStore
    ) -> None:
        await start(store, create=CreateSession(agent_type="w", custom_state={"list": [0]}))
        for step in (1, 2, 3):
            await commit(store, step, messages=[said(f"m{step}")], writes=append_to("list", step))
        await _branch(store, "b", message_count=2)
        await store.merge_custom_state("b", append_to("list", "b"))
        await store.append_messages("b", [said("b3")])
        await _branch(store, "c", source="b", message_count=3)
        then = [[0], [0, 1], [0, 1, 2], [0, 1, 2]]
        for source in ("b", "c"):
            for count, numbers in enumerate(then):
                branch = await _branch(store, f"{source}-{count}", source=source, message_count=count)
                assert (branch.message_count, branch.custom_state) == (count, {"list": numbers})
        await start(store, "c", "r-c", rewind_to=BEGINNING)
        assert (await store.load_state("c")).custom_state == {"list": [0]}
        await store.delete_session("b")
        assert (await _branch(store, "d", source="c", checkpoint_id=BEGINNING)).custom_state == {"list": [0]}
        await store.delete_session(SESSION)
        for count in (0, 1, 2):
            branch = await _branch(store, f"gone-{count}", source="c-3", message_count=count)
            assert branch.custom_state == {"list": [0, 1, 2]}, "nobody knows any more: what it began with"

    @proves("lineage.branch-of-a-branch", "lineage.branch-at-message")
    async def test_a_branch_at_the_message_its_source_began_with_has_the_state_that_began_with(
        self, store: SessionStateStore
    ) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, [said("go"), asked("c-1")])
        await store.create_checkpoint(SESSION, step_meta())
        await store.merge_custom_state(SESSION, set_key("n", 1))
        await _branch(store, "b")
        assert (await _branch(store, "c", source="b", message_count=2)).custom_state == {"n": 1}
        assert (await _branch(store, "d", source="b", message_count=1)).custom_state == {}
        await store.append_messages("b", [said("more")])
        await store.merge_custom_state("b", set_key("n", 2))
        await _branch(store, "e", source="b")
        await store.delete_session("b")
        assert (await _branch(store, "f", source="e", message_count=2)).custom_state == {"n": 2}
        assert (await _branch(store, "g", source="e", message_count=1)).custom_state == {}

    @proves("lineage.branch-of-a-branch", "lineage.branch-survives-its-source")
    async def test_a_branch_whose_source_is_gone_or_was_made_again_has_what_it_began_with(
        self, store: SessionStateStore
    ) -> None:
        await store.create_session("stateless")
        await store.append_messages("stateless", [said("m1"), said("m2")])
        await _branch(store, "b", source="stateless")
        await store.merge_custom_state("b", set_key("n", 1))
        await store.append_messages("b", [said("b3")])
        await _branch(store, "c", source="b")
        await store.delete_session("stateless")
        assert (await _branch(store, "d", source="c", message_count=1)).custom_state == {}, "there was none before"
        await _three_steps(store)
        await _branch(store, "e", message_count=2)
        await store.delete_session(SESSION)
        await _branch(store, SESSION, source="e")
        assert (await _branch(store, "f", message_count=1)).custom_state == {"list": [1, 2]}

    @proves("lineage.branch-of-a-branch")
    async def test_a_branch_sees_what_its_source_sees_after_a_truncation(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        await store.truncate_messages(SESSION, 1)
        await store.append_messages(SESSION, [said("n2")])
        await _branch(store)
        assert await _texts(store, "branch") == ["m1", "n2"]

    @proves("lineage.branch-refused")
    async def test_a_branch_that_cannot_be_is_refused(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        (other,) = (await _three_steps(store, "other"))[:1]
        refusals: tuple[tuple[type[Exception], dict[str, Any]], ...] = (
            (SessionNotFoundError, {"source": "nobody"}),
            (CheckpointNotFoundError, {"checkpoint_id": "made-up"}),
            (CheckpointNotFoundError, {"checkpoint_id": other}),
            (CheckpointNotFoundError, {"message_count": 4}),
            (CheckpointNotFoundError, {"message_count": -1}),
        )
        for error, point in refusals:
            with pytest.raises(error) as refusal:
                await _branch(store, **point)
            if "message_count" in point:
                assert f"has 3 messages; it cannot be branched after {point['message_count']}" in str(refusal.value)
            assert not await store.session_exists("branch")
        with pytest.raises(SessionAlreadyExistsError):
            await _branch(store, "other")

    @proves("lineage.branch-costs-the-same")
    async def test_a_branch_costs_the_same_from_any_history(self, handles: StoreHandles) -> None:
        seam = CountingSeam()
        store = await handles.open(seam=seam)
        costs: list[int] = []
        for session, length in (("short", 10), ("long", 2_000)):
            await store.create_session(session)
            await store.append_messages(session, [said("x")] * length)
            seam.reset()
            await store.clone_session(BranchPoint(from_session_id=session, message_count=5), f"{session}-branch")
            await store.clone_session(BranchPoint(from_session_id=session), f"{session}-copy")
            costs.append(seam.count)
        assert costs[0] == costs[1] > 0

    @proves("lineage.rewind-is-exact")
    async def test_a_rewind_restores_messages_and_state(self, store: SessionStateStore) -> None:
        first, _, third = await _three_steps(store)
        before = await store.load_transcript(SESSION)
        await start(store, run_id="r-2", rewind_to=first, append_messages=(said("again"),), writes=set_key("n", 1))
        assert await _texts(store, SESSION) == ["m1", "again"]
        assert (await store.load_state(SESSION)).custom_state == {"list": [1], "n": 1}
        await start(store, run_id="r-3", rewind_to=third)
        assert await store.load_transcript(SESSION) == before
        assert (await store.load_state(SESSION)).custom_state == {"list": [1, 2, 3]}

    @proves("lineage.rewind-to-the-beginning")
    async def test_a_rewind_to_the_beginning_leaves_no_message_and_the_first_state(
        self, store: SessionStateStore
    ) -> None:
        create = CreateSession(agent_type="w", custom_state={"list": [0], "n": 1})
        await start(store, create=create, append_messages=(said("m0"),))
        for step in (1, 2):
            await commit(store, step, messages=[said(f"m{step}")], writes=append_to("list", step))
        (*_, first) = (await store.list_checkpoints(SESSION)).items
        await store.clone_session(BranchPoint(from_session_id=SESSION, checkpoint_id=first.checkpoint_id), "branch")
        for run in ("r-2", "r-3"):
            await start(store, run_id=run, rewind_to=BEGINNING, append_messages=(said("again"),))
            assert await _texts(store, SESSION) == ["again"]
            assert (await store.load_state(SESSION)).custom_state == {"list": [0], "n": 1}
            await commit(store, messages=[said("other")], fence=fence_of(run), writes=append_to("list", 9))
        await start(store, run_id="r-4", rewind_to=first.checkpoint_id)
        assert await _texts(store, SESSION) == await _texts(store, "branch") == ["m0", "m1"]
        assert (await store.load_state(SESSION)).custom_state == {"list": [0, 1], "n": 1}
        await store.clone_session(BranchPoint(from_session_id=SESSION, checkpoint_id=BEGINNING), "anew")
        assert await _texts(store, "anew") == []
        assert (await store.load_state("anew")).custom_state == {"list": [0], "n": 1}

    @proves("lineage.rewind-is-exact")
    async def test_a_rewind_drops_what_waits_and_what_is_staged(self, store: SessionStateStore) -> None:
        first, *_ = await _three_steps(store)
        fence = (await store.load_state(SESSION)).current_run_id
        assert fence is not None
        current = await store.get_current_run(SESSION)
        assert current is not None
        await commit(store, 4, fence=current.fence, pending=(waiting(store, "call-1"),))
        await start(store, run_id="r-2", rewind_to=first)
        call = await store.get_pending_call(SESSION, "call-1")
        assert call is not None
        assert call.state == "dropped"
        assert not await store.has_staged_changes(SESSION)

    @proves("lineage.rewind-is-exact", "checkpoints.foreign-id-unknown")
    async def test_a_rewind_to_a_strangers_checkpoint_is_refused(self, store: SessionStateStore) -> None:
        await _three_steps(store)
        (stranger, *_) = await _three_steps(store, "other")
        before = await observe(store, SESSION)
        for checkpoint in ("made-up", stranger):
            with pytest.raises(CheckpointNotFoundError):
                await start(store, run_id="r-2", rewind_to=checkpoint)
        assert await observe(store, SESSION) == before

    @proves("lineage.branch-takes")
    async def test_a_run_may_start_on_a_new_branch(self, store: SessionStateStore) -> None:
        _, second, _ = await _three_steps(store)
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=second)
        create = CreateSession(agent_type="w", branch=point, tags=("fork",), metadata={"of": SESSION})
        started = await start(store, "branch", "r-b", create=create, append_messages=(said("go"),))
        branch = await store.load_state("branch")
        assert (started.run.turn, branch.tags, branch.metadata) == (1, ("fork",), {"of": SESSION})
        assert await _texts(store, "branch") == ["m1", "m2", "go"]
        assert branch.custom_state == {"list": [1, 2]}


async def _texts(store: SessionStateStore, session_id: str) -> list[str]:
    """What the user messages of a session say."""
    rows = await store.load_transcript(session_id)
    return [str(row.message.content) for row in rows if isinstance(row.message, UserMessage)]


async def _three_steps(store: SessionStateStore, session_id: str = SESSION) -> list[str]:
    """A session with three messages `m1` to `m3` and a list `[1, 2, 3]`; returns its checkpoints."""
    run = (await start(store, session_id, f"{session_id}-run", create=CreateSession(agent_type="w", user_id="u"))).run
    return [
        (
            await commit(
                store,
                step,
                session_id=session_id,
                fence=run.fence,
                messages=[said(f"m{step}")],
                writes=append_to("list", step),
            )
        ).checkpoint_id
        for step in (1, 2, 3)
    ]


def _done(call: str) -> ToolMessage:
    return ToolMessage(tool_call_id=call, tool_name="tool", content="done")


async def _tool_messages(store: SessionStateStore, session_id: str) -> list[ToolMessage]:
    rows = await store.load_transcript(session_id)
    return [row.message for row in rows if isinstance(row.message, ToolMessage)]


async def _results(store: SessionStateStore, session_id: str) -> dict[str, JSON]:
    """What the transcript says about each call; None if it was not executed."""
    results = await _tool_messages(store, session_id)
    return {each.tool_call_id: None if each.code == NOT_EXECUTED else each.content for each in results}


async def _codes(store: SessionStateStore, session_id: str) -> dict[str, str | None]:
    """The outcome of each call according to the transcript."""
    return {each.tool_call_id: each.code for each in await _tool_messages(store, session_id)}


async def _branch(
    store: SessionStateStore, session_id: str = "branch", *, source: str = SESSION, **point: Any
) -> SessionState:
    """Clone a session at a point."""
    return await store.clone_session(BranchPoint(from_session_id=source, **point), session_id)
