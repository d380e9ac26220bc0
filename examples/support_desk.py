"""A support desk: one agent hands the conversation to another, which asks a person before it pays money back.

The answer is shown while the model writes it. A check sends an answer without its case number back to the model.
"""

import asyncio

from pydantic import BaseModel

from helix_agents import (
    Agent,
    ApprovalAnswer,
    Completed,
    Executor,
    Handoff,
    RetryOutput,
    RunContext,
    ScriptedModel,
    Suspended,
    ToolContext,
    tool,
)
from helix_agents.testing import call, finish, reply


class Case(BaseModel):
    number: int = 7
    customer: str = ""
    paid: list[int] = []


class Answer(BaseModel):
    text: str
    case: int | None


@tool
async def know(ctx: ToolContext[Case], name: str) -> str:
    """Note who is writing."""
    ctx.state.customer = name
    return "noted"


@tool(require_approval=True, effect="once")
async def refund(ctx: ToolContext[Case], amount: int) -> str:
    """Pay money back."""
    ctx.state.paid.append(amount)
    return f"paid {amount} to {ctx.state.customer}"


def has_case_number(ctx: RunContext[Case], answer: Answer) -> None:
    if answer.case != ctx.state.number:
        raise RetryOutput(f"name the case, which is {ctx.state.number}")


# No key needed: agents that hand over to each other share one script. With real models, each agent has its own.
SCRIPT = ScriptedModel(
    [
        reply(calls=[call("know", {"name": "Ann"}), call("handoff__billing", {"reason": "She was charged twice."})]),
        call("refund", {"amount": 20}),
        finish({"text": "You have your 20 back, Ann.", "case": None}),
        finish({"text": "You have your 20 back, Ann.", "case": 7}),
        call("handoff__desk", {"reason": "It is not about money any more."}),
        finish({"text": "We open at nine.", "case": 7}),
    ]
)
billing = Agent(
    name="billing",
    description="Invoices and refunds.",
    model=SCRIPT,
    state=Case,
    output=Answer,
    tools=[refund],
    handoffs=[Handoff("desk", description="Anything that is not about money.")],
    output_checks=[has_case_number],
)
desk = Agent(
    name="desk",
    model=SCRIPT,
    state=Case,
    output=Answer,
    tools=[know],
    handoffs=[billing],
    output_checks=[has_case_number],
)


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[desk]) as helix:
        asked = await helix.execute(desk, "I'm Ann, and you charged me twice.")
        match await asked.result():
            case Suspended(pending=[waiting]):
                print(f"may I {waiting.tool_name} {waiting.input}?")
            case other:
                raise SystemExit(f"no approval was asked for: {other}")
    async with Executor.open("sqlite:///helix.db", agents=[desk]) as helix:  # another process, another day
        await helix.submit_tool_result(asked.session_id, waiting.tool_call_id, ApprovalAnswer(approved=True))
        answered = await helix.resume(desk, asked.session_id)
        async for draft in answered.partial_output():
            print("writing:", draft)
        match await answered.result():
            case Completed(output=answer):
                print(f"{answer.text} (case {answer.case})")  # your editor knows that this is an Answer
            case other:
                print(other)
        print((await helix.run(desk, "When do you open?", session_id=asked.session_id)).text)
        session = await helix.sessions.get(asked.session_id)
        print(f"with {session.worked_by} again: {session.custom_state}")


if __name__ == "__main__":
    asyncio.run(main())
