"""Scenarios of an agent's memory: told once, never about another user, saved once, and learned once from a turn."""

from collections.abc import Sequence
from typing import Any

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import RunContext
from helix_agents.agent.history import LastTurns
from helix_agents.agent.tools import Tool, Wakeup, tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import ModelUnavailableError
from helix_agents.domain.messages import Message, UserMessage
from helix_agents.domain.recollections import REMEMBERED, is_recollection
from helix_agents.domain.sessions import BranchPoint
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.memory.hashing import HashingEmbedder
from helix_agents.memory.learning import MemoryGeneration
from helix_agents.memory.memory import Memory
from helix_agents.memory.memory_manager import MemoryManager
from helix_agents.ports.backend import Backend
from helix_agents.ports.embeddings import EmbeddingAdapter, EmbeddingPurpose
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    lines,
    spoken,
    transcript,
)

ANN = "ann"


class _Answers(ScriptedModel):
    """Gives the same answer to everything, and records what it was shown; the words behind a slash are a call it
    makes."""

    def __init__(self) -> None:
        super().__init__(self._say, name="answers")
        self.shown: list[list[Message]] = []

    def _say(self, request: ModelRequest) -> Any:
        self.shown.append(list(request.messages))
        said = next(each for each in reversed(request.messages) if isinstance(each, UserMessage) and not each.hidden)
        text = str(said.content)
        if not text.startswith("/") or request.step > 1:
            return "I see."
        name, _, given = text[1:].partition(" ")
        return call(name, {"query" if name == "search_memory" else "text": given})

    @property
    def told(self) -> str:
        """What it was last told from memory."""
        return "\n".join(str(each) for each in self.shown[-1] if is_recollection(each))


class _Broken:
    name = "broken"

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
        raise ModelUnavailableError(self.name, "no route")


class _Rests:
    """A capability that holds a run when it has come to rest but is not committed yet."""

    tools: tuple[Tool[..., Any], ...] = ()

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def news(self, context: RunContext[Any, Any]) -> Sequence[str]:
        return ()

    async def rest(self, context: RunContext[Any, Any]) -> None:
        await self._gate.wait()

    async def wakeups(self, store: EntryStore, agent: str) -> Sequence[Wakeup]:
        return ()

    async def sweep(self, store: EntryStore, is_over: object) -> None:
        """Keeps nothing that grows old."""


def _agent(model: ScriptedModel, memory: Memory | None = None, **fields: Any) -> AnyAgent:
    return Agent(name="friend", model=model, memory=memory or Memory(embedder=HashingEmbedder()), **fields)


async def _say(helix: Executor, agent: AnyAgent, *texts: str, session: str = SESSION, user: str | None = ANN) -> None:
    for text in texts:
        await completed(await helix.execute(agent, text, session, user_id=user))


def _manager(parts: Backend, embedder: EmbeddingAdapter | None = None) -> MemoryManager:
    assert parts.memories is not None
    return MemoryManager(parts.memories, embedder=embedder or HashingEmbedder())


async def _kept(parts: Backend, entity: str = ANN) -> list[str]:
    return [each.text for each in await _manager(parts).list_memories(entity)]


class RememberingContract(ScenarioContract):
    """What is remembered reaches every conversation of its owner, and of no one else, on every runtime."""

    async def test_memories_are_told_once_when_their_owner_speaks_and_to_nobody_else(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        memories, model = _manager(parts), _Answers()
        tea = (await memories.save(ANN, "Likes green tea")).memory
        await memories.save("bob", "Likes tea with rum")
        async with open_executor(memories=parts.memories) as helix:
            agent = _agent(model)
            await _say(helix, agent, "Which tea shall I buy?", "/search_memory teas", "More tea?")
            assert lines(model.shown[0]) == ["user: Which tea shall I buy?", "hidden: recollection"]
            assert "green tea" in model.told
            assert "rum" not in str(model.shown)
            hidden = [line for line in await spoken(helix) if line.startswith("hidden")]
            assert hidden == ["hidden: recollection"]
            await _say(helix, agent, "Which tea shall I buy?", session="s-2", user="bob")
            assert "rum" in model.told
            assert "green" not in str(model.shown[-1])
            await _say(helix, agent, "Which tea shall I buy?", session="s-3", user=None)
            assert lines(model.shown[-1]) == ["user: Which tea shall I buy?"]
        await memories.update(ANN, tea.id, text="Likes black tea now")
        async with open_executor(memories=parts.memories) as other:
            # A memory that has changed since it was told is told again, and only after what was said before.
            before = model.shown[3]
            await _say(other, _agent(model), "And which tea today?", "Tea?")
            assert model.shown[-1][: len(before)] == before
            assert lines(model.shown[-1]).count("hidden: recollection") == 2
            assert "black tea now" in model.told

    async def test_what_a_history_processor_shows_no_more_is_told_again(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        await _manager(parts).save(ANN, "Likes green tea")
        for processors, tells in (([LastTurns(turns=2)], [1, 1, 1, 1]), ([], [1, 1, 1, 1])):
            model, session = _Answers(), f"s-{len(processors)}"
            async with open_executor(memories=parts.memories) as helix:
                agent = _agent(model, history_processors=processors)
                await _say(helix, agent, *["Which tea?"] * 4, session=session)
                assert [lines(each).count("hidden: recollection") for each in model.shown] == tells
                told = [line for line in await spoken(helix, session) if line.startswith("hidden")]
                assert len(told) == (2 if processors else 1)

    async def test_who_goes_back_to_before_it_was_told_is_told_again(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        await _manager(parts).save(ANN, "Likes green tea")
        model = _Answers()
        async with open_executor(memories=parts.memories) as helix:
            agent = _agent(model)
            await _say(helix, agent, "Hello there.")
            before = (await helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
            await _say(helix, agent, "Which tea?")
            back: dict[str, Any] = {"mode": "from_checkpoint", "checkpoint_id": before, "message": "Tea, or coffee?"}
            await completed(await helix.resume(agent, SESSION, **back))
            assert lines(model.shown[-1])[-2:] == ["user: Tea, or coffee?", "hidden: recollection"]
            assert lines(await transcript(helix)).count("hidden: recollection") == 1

    async def test_whoever_gets_a_branch_of_anothers_session_is_not_told_what_is_remembered_of_them(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        await _manager(parts).save(ANN, "Likes green tea")
        await _manager(parts).save("bob", "Likes tea with rum")
        model = _Answers()
        async with open_executor(memories=parts.memories) as helix:
            agent = _agent(model)
            await _say(helix, agent, "Which tea?")
            told = (await helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
            for user in ("bob", ANN):
                point = BranchPoint(from_session_id=SESSION, checkpoint_id=told)
                await completed(await helix.execute(agent, "And which tea?", f"of-{user}", branch=point, user_id=user))
                assert ("green tea" in str(model.shown[-1])) == (user == ANN)
                assert ("rum" in str(model.shown[-1])) == (user == "bob")
            # Nor in the next turn, from another process, where nothing new is told.
            await _say(helix, agent, "Well?", session="of-bob", user="bob")
            assert "green tea" not in str(model.shown[-1])

    async def test_a_model_saves_what_other_conversations_find(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        model = _Answers()
        async with open_executor(memories=parts.memories) as helix:
            agent = _agent(model)
            await _say(helix, agent, "/save_memory Ann has a cat called Mog", "/save_memory ann has a cat called Mog ")
            await _say(helix, agent, "/search_memory Which cats?", session="s-2")
            assert await _kept(parts) == ["Ann has a cat called Mog"]
            [kept] = await _manager(parts).list_memories(ANN)
            assert (kept.source, kept.session_id, kept.embedding_status) == ("friend", SESSION, "complete")
            found = (await spoken(helix, "s-2"))[3]
            assert f'{{"id":"{kept.id}","text":"Ann has a cat called Mog","since":"{kept.day}"}}' in found
            await _say(helix, agent, "/save_memory Somebody has a dog", session="s-3", user=None)
            assert "no user" in str((await transcript(helix, "s-3"))[2])
            assert (await _manager(parts).list_entities()).total == 1

    async def test_an_embedder_that_is_down_loses_nothing_and_the_janitor_sees_to_it(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        if parts.memories is None:
            return
        model = _Answers()
        async with open_executor(memories=parts.memories) as helix:
            agent = _agent(model, Memory(embedder=_Broken()))
            await _say(helix, agent, "/save_memory Ann plays chess", "Chess?")
            assert "plays chess" in model.told
        [kept] = await _manager(parts).list_memories(ANN)
        assert kept.embedding_status == "pending"
        clock.advance(61_000)
        async with open_executor(memories=parts.memories, agents=[_agent(model)]) as helix:
            await helix.sweep()
        [kept] = await _manager(parts).list_memories(ANN)
        assert kept.embedded_by == HashingEmbedder().name

    async def test_memories_are_made_of_a_turn_once_also_where_its_process_dies(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        gate = Gate()
        wordings = iter(["Ann's cat is called Mog", "Ann has a cat, Mog", "Never asked"])

        def learn(request: ModelRequest) -> Any:
            # If a model saw what a dead attempt kept, it would rightly leave it out, and it would be lost.
            assert "Mog" not in str(request.messages[0]).partition("The conversation")[0]
            return call("remember", {"save": [next(wordings)]})

        learner = ScriptedModel(learn, name="learner")

        def agent() -> AnyAgent:
            memory = Memory(generation=MemoryGeneration(model=learner))
            return _agent(_Answers(), memory, capabilities=[_Rests(gate)])

        async with open_executor(grace=0, memories=parts.memories) as dying:
            await dying.execute(agent(), "My cat is called Mog.", SESSION, user_id=ANN)
            await gate.until_reached()
            assert len(await _kept(parts)) == 1
        gate.opened.set()
        async with open_executor(agents=[agent()], memories=parts.memories) as other:
            await other.recover()
            handle = await other.get_handle(agent(), SESSION)
            assert handle is not None
            await completed(handle)
            [kept] = await _manager(parts).list_memories(ANN)
            assert "Mog" in kept.text
            assert (await transcript(other))[-1].metadata[REMEMBERED] == [kept.id]
            used = {each.source_name: each.calls for each in (await handle.usage()).sources}
            assert used["learner"] == 1

    async def test_an_answer_of_the_learning_model_that_is_of_no_use_is_paid_for(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        answers = iter([reply("Ann has", stop_reason="length"), "Nothing."])
        learner = ScriptedModel(lambda _: next(answers), name="learner")
        agent = _agent(_Answers(), Memory(generation=MemoryGeneration(model=learner)), budget=Budget(model_calls=9))
        async with open_executor(memories=parts.memories) as helix:
            await _say(helix, agent, "My cat is called Mog.")
            handle = await helix.get_handle(agent, SESSION)
            assert handle is not None
            used = {each.source_name: each.calls for each in (await handle.usage()).sources}
            assert used == {"answers": 1, "learner": 1}
            session = await helix.sessions.get(SESSION)
            assert session.spent is not None
            assert session.spent.total.model_calls == 2
            # The turn is looked at again with the next one.
            await _say(helix, agent, "And she is old.")
            assert (await transcript(helix))[-1].metadata[REMEMBERED] == []

    async def test_a_turn_that_was_steered_is_one_of_those_after_which_memories_are_made(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        learner = ScriptedModel(lambda _: "Nothing.", name="learner")
        memory = Memory(generation=MemoryGeneration(model=learner, every_turns=2))
        agent = _agent(ScriptedModel([call("work"), "Done.", "Yes."]), memory, tools=[work])
        async with open_executor(memories=parts.memories) as helix:
            handle = await helix.execute(agent, "Go", SESSION, user_id=ANN)
            await gate.until_reached()
            await helix.execute(agent, "Quickly", SESSION, if_running="steer")
            gate.opened.set()
            await completed(handle)
            assert learner.asked == 0
            await _say(helix, agent, "Done?")
            assert learner.asked == 1

    async def test_what_a_later_turn_shows_replaces_and_forgets_what_was_learned(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return
        asked: list[str] = []

        def learn(request: ModelRequest) -> Any:
            asked.append(str(request.messages[0]))
            if len(asked) == 1:
                return ModelUnavailableError("learner", "no route")
            if len(asked) == 2:
                return call("remember", {"save": ["Ann lives in Bern", "Ann has a dog"]})
            bern, dog = (1, 2) if "1. Ann lives in Bern" in asked[-1] else (2, 1)
            return call("remember", {"replace": [{"number": bern, "text": "Ann lives in Basel"}], "forget": [dog, 9]})

        memory = Memory(generation=MemoryGeneration(model=ScriptedModel(learn, name="learner"), every_turns=2))
        await _manager(parts).save(ANN, "Ann lives in Bern", source="crm")
        async with open_executor(memories=parts.memories) as helix:
            agent = _agent(_Answers(), memory)
            await _say(helix, agent, "I live in Bern.", "And I have a dog.")
            # If memories could not be made from a turn, the next turn is examined together with it.
            assert (len(asked), await _kept(parts)) == (1, ["Ann lives in Bern"])
            await _say(helix, agent, "His name is Rex.")
            assert "I live in Bern." in asked[1]
            assert sorted(await _kept(parts)) == ["Ann has a dog", "Ann lives in Bern", "Ann lives in Bern"]
            await _say(helix, agent, "The dog in Bern died.", "I live in Basel.")
            assert "I live in Bern." not in asked[2].partition("The conversation")[2]
            # The model may not change memories from other sources.
            assert sorted(await _kept(parts)) == ["Ann lives in Basel", "Ann lives in Bern"]
