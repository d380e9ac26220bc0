"""Scenarios of flows: a function decides what an agent does next, and is replayed wherever its turn goes on."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.state_type import NoState
from helix_agents.agent.tools import Tool, tool
from helix_agents.domain.errors import CallFailedError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.flows.flow import flow
from helix_agents.flows.flow_run import FlowRun
from helix_agents.llm.scripted import ScriptedModel, call
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    NO_GRACE,
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    failed,
    interrupted,
    runs_of,
    spoken,
    suspended,
)


class Order(BaseModel):
    """What a customer wants."""

    item: str
    count: int


class Receipt(BaseModel):
    """What a customer gets."""

    order: Order
    paid: float
    note: str


class Parcel(BaseModel):
    """Something to send, with data whose written form is not always the same."""

    weights: dict[str, float]
    rooms: set[int]
    sent: datetime
    receipt: Receipt | None = None


class Shop:
    """Tools that count how often they ran, whichever process runs them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool
        async def price(item: str) -> float:
            """Look up a price."""
            self.ran.append(f"price {item}")
            return 2.5

        @tool
        async def stock(item: str) -> int:
            """Count what is there."""
            self.ran.append(f"stock {item}")
            return 7

        @tool(require_approval=True)
        async def pay(amount: float) -> str:
            """Take the money."""
            self.ran.append(f"pay {amount}")
            return f"paid {amount}"

        self.price, self.stock, self.pay = price, stock, pay
        self.confirm: Tool[..., bool] = ask_human("Is it right?", answer=bool, name="confirm")

    def flow(self) -> Agent[NoState, Receipt, Any]:
        """A sale; every process defines it anew."""

        @flow(tools=[self.price, self.stock, self.pay, self.confirm])
        async def sale(run: FlowRun, order: Order) -> Receipt:
            """Sell something."""
            each, there = await asyncio.gather(run.call(self.price, order.item), run.call(self.stock, item=order.item))
            if there < order.count or not await run.call(self.confirm):
                return Receipt(order=order, paid=0, note="not sold")
            try:
                note = await run.call(self.pay, each * order.count)
            except CallFailedError as problem:
                return Receipt(order=order, paid=0, note=problem.why)
            return Receipt(order=order, paid=each * order.count, note=note)

        return sale


ORDER = Order(item="tea", count=2)
SAID = ORDER.model_dump_json()


class FlowsContract(ScenarioContract):
    """A flow is an agent like any other: its calls are stored, wait and are repeated like those of a model."""

    async def test_a_flow_does_what_its_function_says(self, helix: Executor) -> None:
        shop = Shop()
        much = Order(item="tea", count=9).model_dump_json()
        receipt = await completed(await helix.execute(shop.flow(), much, SESSION))
        assert receipt == Receipt(order=Order(item="tea", count=9), paid=0, note="not sold")
        assert (await spoken(helix))[1:5] == [
            "assistant: [price#call_1_1, stock#call_1_2]",
            "result price#call_1_1: 2.5",
            "result stock#call_1_2: 7",
            "assistant: [__finish__#call_2_1]",
        ]
        assert sorted(shop.ran) == ["price tea", "stock tea"]

    async def test_people_answer_a_flow_in_other_processes_and_nothing_is_done_twice(
        self, open_executor: OpenExecutor
    ) -> None:
        shop = Shop()
        async with open_executor() as first:
            [question] = (await suspended(await first.execute(shop.flow(), SAID, SESSION))).pending
            assert question.input["question"] == "Is it right?"
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, question.tool_call_id, ToolAnswer(result=True))
            [approval] = (await suspended(await second.resume(shop.flow(), SESSION))).pending
            assert approval.input == {"amount": 5.0}
        async with open_executor() as third:
            await third.submit_tool_result(SESSION, approval.tool_call_id, ApprovalAnswer(approved=True))
            receipt = await completed(await third.resume(shop.flow(), SESSION))
        assert receipt == Receipt(order=ORDER, paid=5.0, note="paid 5.0")
        assert sorted(shop.ran) == ["pay 5.0", "price tea", "stock tea"]

    async def test_a_flow_catches_what_went_wrong_with_a_call(self, helix: Executor) -> None:
        shop = Shop()
        [question] = (await suspended(await helix.execute(shop.flow(), SAID, SESSION))).pending
        await helix.submit_tool_result(SESSION, question.tool_call_id, ToolAnswer(result=True))
        [approval] = (await suspended(await helix.resume(shop.flow(), SESSION))).pending
        await helix.submit_tool_result(SESSION, approval.tool_call_id, ApprovalAnswer(approved=False))
        receipt = await completed(await helix.resume(shop.flow(), SESSION))
        assert receipt == Receipt(order=ORDER, paid=0, note="not_approved")

    async def test_a_flow_asks_agents_and_what_they_wait_for_is_answered_at_its_root(
        self, open_executor: OpenExecutor
    ) -> None:
        shop = Shop()

        def review() -> AnyAgent:
            def script(amount: float) -> ScriptedModel:
                return ScriptedModel([call("pay", {"amount": amount}), "Reviewed."])

            clerk = Agent(name="clerk", model=script(1.5), tools=[shop.pay])
            critic = Agent(name="critic", model=ScriptedModel([call("__finish__", ORDER.model_dump())]), output=Order)

            @flow(agents=[clerk, critic])
            async def review(run: FlowRun, topic: str) -> str:
                """Review something."""
                said, found = await asyncio.gather(run.ask(clerk, topic), run.ask(critic, topic))
                return f"{said} {found.item} {found.count}"

            return review

        async with open_executor() as first:
            [approval] = (await suspended(await first.execute(review(), "Look at it", SESSION))).pending
            assert (approval.tool_name, approval.root_session_id) == ("pay", SESSION)
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, approval.tool_call_id, ApprovalAnswer(approved=True))
            assert await completed(await second.resume(review(), SESSION)) == "Reviewed. tea 2"
        assert shop.ran == ["pay 1.5"]

    async def test_an_agent_delegates_to_a_flow(self, helix: Executor) -> None:
        shop = Shop()
        more = Order(item="tea", count=9)
        sell = shop.flow().as_tool(input=Order)
        seller = Agent(
            name="seller", model=ScriptedModel([call("subagent__sale", more.model_dump()), "None left."]), tools=[sell]
        )
        assert await completed(await helix.execute(seller, "Sell it", SESSION)) == "None left."
        assert '"note":"not sold"' in (await spoken(helix))[2]

    async def test_a_flow_that_failed_goes_on_after_its_last_call_once_it_is_mended(
        self, open_executor: OpenExecutor
    ) -> None:
        shop = Shop()

        def counting(*, mended: bool) -> AnyAgent:
            @flow(tools=[shop.price])
            async def counting(run: FlowRun) -> str:
                """Add up."""
                first = await run.call(shop.price, "tea")
                if not mended:
                    raise ZeroDivisionError("division by zero")
                return f"{first + await run.call(shop.price, 'milk')}"

            return counting

        async with open_executor() as first:
            failure = await failed(await first.execute(counting(mended=False), "Go", SESSION))
            assert (failure.code, failure.error) == (
                "flow_failed",
                "Flow 'counting' failed: ZeroDivisionError: division by zero",
            )
        async with open_executor() as second:
            assert await completed(await second.retry(counting(mended=True), SESSION)) == "5.0"
        assert shop.ran == ["price tea", "price milk"]

    async def test_a_retry_makes_the_calls_again_that_ended_a_flow(self, open_executor: OpenExecutor) -> None:
        shop = Shop()
        broken = {"milk", "honey"}

        @tool
        async def order(item: str) -> str:
            """Order something, if it can be had."""
            shop.ran.append(item)
            if item in broken:
                raise ToolFailed(f"no {item}")
            return item

        def buying() -> AnyAgent:
            @flow(tools=[order, shop.confirm])
            async def buying(run: FlowRun) -> str:
                """Buy several things at once."""
                async with asyncio.TaskGroup() as group:
                    found = [group.create_task(run.call(order, item)) for item in ("tea", "milk", "honey")]
                await run.call(shop.confirm)
                return " ".join([each.result() for each in found])

            return buying

        async with open_executor() as first:
            failure = await failed(await first.execute(buying(), "Go", SESSION))
            assert failure.error == (
                "Flow 'buying' failed: CallFailedError: order failed (tool_failed): no milk; "
                "CallFailedError: order failed (tool_failed): no honey"
            )
        broken.remove("milk")
        async with open_executor() as second:
            failure = await failed(await second.retry(buying(), SESSION))
            assert failure.error == "Flow 'buying' failed: CallFailedError: order failed (tool_failed): no honey"
            broken.clear()
            [question] = (await suspended(await second.retry(buying(), SESSION))).pending
        async with open_executor() as third:
            await third.submit_tool_result(SESSION, question.tool_call_id, ToolAnswer(result=True))
            assert await completed(await third.resume(buying(), SESSION)) == "tea milk honey"
        assert sorted(shop.ran) == ["honey", "honey", "honey", "milk", "milk", "tea"]

    async def test_a_message_that_a_flow_could_not_read_is_no_part_of_the_next(self, helix: Executor) -> None:
        shop = Shop()
        failure = await failed(await helix.execute(shop.flow(), "Tea, please", SESSION))
        assert failure.code == "flow_input_invalid"
        much = Order(item="tea", count=9).model_dump_json()
        receipt = await completed(await helix.execute(shop.flow(), much, SESSION))
        assert receipt.note == "not sold"

    async def test_a_call_is_found_again_however_its_arguments_are_written(self, open_executor: OpenExecutor) -> None:
        shop = Shop()
        packed: list[Parcel] = []

        @tool
        async def pack(parcel: Parcel, by: str, *, to: list[Order], fast: bool = True) -> Parcel:
            """Pack a parcel."""
            packed.append(parcel)
            return parcel

        carrier = Agent(name="carrier", description="Carries.", model=ScriptedModel(lambda _: "carried"))
        carry = carrier.as_tool(input=Parcel)

        def packing(rooms: list[int]) -> AnyAgent:
            @flow(tools=[pack, carry, shop.confirm])
            async def packing(run: FlowRun) -> str:
                """Pack something twice."""
                # These sets are equal, and list their elements in the order in which they got them.
                weights = {"tea": 1.5, "b": 2.0, "a": 1e20}
                parcel = Parcel(weights=weights, rooms=set(rooms), sent=datetime(2026, 5, 1, tzinfo=UTC))
                same = await run.call(pack, parcel, "Ann", to=[Order(item="tea", count=2)])
                said = await run.call(carry, weights=weights, rooms=set(rooms), sent=parcel.sent)
                await run.call(shop.confirm)
                return f"{said} {same == parcel}"

            return packing

        async with open_executor() as first:
            [question] = (await suspended(await first.execute(packing([0, 8]), "Go", SESSION))).pending
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, question.tool_call_id, ToolAnswer(result=True))
            assert await completed(await second.resume(packing([8, 0]), SESSION)) == "carried True"
        assert len(packed) == 1

    async def test_a_function_waits_in_memory_between_its_steps(self, helix: Executor) -> None:
        shop = Shop()
        starts: list[str] = []

        @flow(tools=[shop.price])
        async def counting(run: FlowRun) -> float:
            """Add up."""
            starts.append("started")
            return sum([await run.call(shop.price, f"{number}") for number in range(5)])

        assert await completed(await helix.execute(counting, "Go", SESSION)) == 12.5
        assert starts == ["started"]

    async def test_a_flow_that_makes_other_calls_than_it_did_is_not_continued(
        self, open_executor: OpenExecutor
    ) -> None:
        shop = Shop()

        def asking(item: str) -> AnyAgent:
            @flow(tools=[shop.price, shop.confirm])
            async def asking(run: FlowRun) -> str:
                """Ask about a price."""
                each = await run.call(shop.price, item)
                return "sold" if await run.call(shop.confirm) else f"{each}"

            return asking

        async with open_executor() as first:
            [question] = (await suspended(await first.execute(asking("tea"), "Go", SESSION))).pending
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, question.tool_call_id, ToolAnswer(result=True))
            failure = await failed(await second.resume(asking("milk"), SESSION))
            assert failure.code == "flow_changed"
            assert 'it had called price({"item":"tea"}), and now calls price({"item":"milk"})' in failure.error
            assert await completed(await second.retry(asking("tea"), SESSION)) == "sold"
        assert shop.ran == ["price tea"]

    async def test_a_call_that_a_stop_kept_from_running_is_made_again(self, open_executor: OpenExecutor) -> None:
        gate = Gate()
        ran: list[str] = []

        @tool
        async def work(what: str) -> str:
            """Work."""
            if not ran:
                await gate.wait()
            ran.append(what)
            return what

        def working() -> AnyAgent:
            @flow(tools=[work])
            async def working(run: FlowRun) -> str:
                """Work twice."""
                return await run.call(work, "one") + await run.call(work, "two")

            return working

        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(working(), "Go", SESSION)
            await gate.until_reached()
            await handle.interrupt()
            await interrupted(handle)
            gate.opened.set()
            ran.append("stopped")
            assert await completed(await helix.resume(working(), SESSION)) == "onetwo"
            assert ran == ["stopped", "one", "two"]
            assert [run.status for run in await runs_of(helix)] == ["interrupted", "completed"]

    async def test_an_agent_that_was_stopped_after_it_did_something_once_is_not_asked_again(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()
        ran: list[str] = []

        @tool(effect="once")
        async def publish(what: str) -> str:
            """Publish something."""
            ran.append(what)
            return f"published {what}"

        @tool
        async def rest() -> str:
            """Rest for long."""
            await gate.wait()
            return "rested"

        def reporting() -> AnyAgent:
            writer = Agent(
                name="writer",
                model=ScriptedModel([call("publish", {"what": "news"}), call("rest"), "Done."]),
                tools=[publish, rest],
            )

            @flow(agents=[writer])
            async def reporting(run: FlowRun) -> str:
                """Let somebody report."""
                return await run.ask(writer, "Report")

            return reporting

        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(reporting(), "Go", SESSION)
            await gate.until_reached()
            await handle.interrupt()
            await interrupted(handle)
            gate.opened.set()
            failure = await failed(await helix.resume(reporting(), SESSION))
            assert failure.error == (
                "Flow 'reporting' failed: CallFailedError: subagent__writer failed (run_stopped): "
                "This call was cut short: it may or may not have taken effect."
            )
        assert ran == ["news"]
