"""A terminal chat: the main thread waits for the keyboard, the agents work on another thread."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from helix_agents.agent.agent import AnyAgent
from helix_agents.cli.agent_modules import load_agents, load_deps
from helix_agents.cli.chat_answers import ask_person
from helix_agents.cli.chat_commands import COMMANDS, Leave, explain
from helix_agents.cli.driving import Workplace, agent_for, check_agent, find_model, tell_next, tell_output
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.following import follow
from helix_agents.cli.keyboard import Keyboard
from helix_agents.cli.loop_thread import LoopThread
from helix_agents.cli.opened import open_driving
from helix_agents.cli.output import Output
from helix_agents.cli.session_views import shown_message
from helix_agents.cli.warnings_shown import show_warnings
from helix_agents.domain.errors import AgentAlreadyRunningError, HelixError, SessionNotFoundError
from helix_agents.domain.pending import READY, PendingCall, PendingFilter
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.runs import SUSPENDED
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process import Executor
from helix_agents.system import RandomIds

HISTORY_SHOWN = 10
# How long one look at the keyboard lasts while an agent works.
GLANCE_SECONDS = 0.1
# How often to check that the process that drives the followed run is alive.
LOOK_AGAIN_SECONDS = 1.0

T = TypeVar("T")


def chat(
    output: Output,
    place: Workplace,
    *,
    session_id: str | None,
    agent_name: str | None,
    user_id: str | None,
    model: str | None,
) -> ExitCode:
    """Hold a conversation until the person leaves."""
    agents = load_agents(place.agents)
    show_warnings()
    adapter = find_model(model)
    with LoopThread() as loop:
        leaving = AsyncExitStack()
        helix = loop.run(leaving.enter_async_context(open_driving(place.store_url, agents, load_deps(place.deps))))
        try:
            agent = loop.run(agent_for(helix, place.agents, agent_name, session_id))
            check_agent(agent, adapter, place.deps)
            talk = Chat(
                output, place, loop, helix, agent, session_id or RandomIds().new("chat"), user_id=user_id, model=adapter
            )
            talk.hold()
        finally:
            loop.run(leaving.aclose())
    return ExitCode.OK


class Chat:
    """One person, one agent, one session."""

    def __init__(
        self,
        output: Output,
        place: Workplace,
        loop: LoopThread,
        helix: Executor,
        agent: AnyAgent,
        session_id: str,
        *,
        user_id: str | None,
        model: LLMAdapter | None,
    ) -> None:
        self.output = output
        self.keyboard = Keyboard(output.note)
        self.loop = loop
        self.helix = helix
        self.session_id = session_id
        self._place = place
        self.agent = agent
        self._user_id = user_id
        self._model = model

    def hold(self) -> None:
        """Talk until the person leaves."""
        self.output.note(f"{self.agent.name}, session {self.session_id}; /help for help, Ctrl-D to leave")
        try:
            self._guarded(self._pick_up)
            while True:
                self._guarded(self._turn)
        except (Leave, EOFError):
            self.output.say()
        tell_next(self.output, self._place, "continue with", "chat", "--session", self.session_id)

    # -- what commands use

    def drive(self, beginning: Coroutine[Any, Any, RunHandle[Any]]) -> None:
        """Start a run and see it to its end, putting everything that it asks to the person on the way."""
        result = self._see(self.loop.run(beginning))
        while isinstance(result, Suspended) and self._answer(result.pending):
            result = self._see(self.loop.run(self.helix.resume(self.agent, self.session_id, model=self._model)))
        self._tell(result)

    def resume(self) -> None:
        """Continue what is open; the person is asked about waiting calls first."""
        waiting = self.loop.run(self.helix.list_pending(PendingFilter(root_session_id=self.session_id)))
        self._answer(waiting.items)
        self.drive(self.helix.resume(self.agent, self.session_id, model=self._model))

    def retry(self) -> None:
        """Retry what failed."""
        self.drive(self.helix.retry(self.agent, self.session_id, model=self._model))

    # -- turns

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do something; an error is shown, and the conversation continues."""
        try:
            act()
        except HelixError as problem:
            self.output.fail(problem)
        except KeyboardInterrupt:
            self.output.say()
            self.output.note("Press Ctrl-D or type /exit to leave; the session is kept.")

    def _turn(self) -> None:
        line = self.keyboard.ask("you> ").strip()
        if not line:
            return
        if not line.startswith("/"):
            self.drive(self.helix.execute(self.agent, line, self.session_id, user_id=self._user_id, model=self._model))
            return
        name, _, rest = line[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            self.output.note(f"there is no command /{name}\n{explain()}")
            return
        try:
            command.act(self, rest.strip())
        except SessionNotFoundError:
            self.output.note("nothing yet: the session starts with your first message")

    def _pick_up(self) -> None:
        """Show the state of an existing session, and continue what is open there."""
        try:
            snapshot = self.loop.run(self.helix.sessions.snapshot(self.session_id))
        except SessionNotFoundError:
            return
        for message in snapshot.messages[-HISTORY_SHOWN:]:
            for line in shown_message(message):
                self.output.note(line)
        run = snapshot.run
        if run is None:
            return
        if run.status in SUSPENDED:
            self.resume()
        elif run.status == "running":
            self._take_over()
        elif snapshot.status == "interrupted":
            self.output.note("this session was interrupted; /resume to continue, or send a message")
        elif snapshot.status == "failed":
            self.output.note("the last turn failed; /retry to try again, or send a message")

    def _take_over(self) -> None:
        """Continue a turn whose process died; show one that another process drives, while that process lives."""
        result = None
        while result is None:
            try:
                self.drive(self.helix.resume(self.agent, self.session_id, model=self._model))
                return
            except AgentAlreadyRunningError:
                self.output.note("another process is running this turn; showing it here")
            handle = self.loop.run(self.helix.get_handle(self.agent, self.session_id))
            if handle is None:
                return
            result = self._attend(handle, self._follow_while_alive(handle))
        self._tell(result)

    async def _follow_while_alive(self, handle: RunHandle[Any]) -> RunResult[Any] | None:
        """The end of a run that another process drives; None if that process died first."""
        following = asyncio.create_task(follow(self.output, handle))
        while not following.done():
            await asyncio.wait((following,), timeout=LOOK_AGAIN_SECONDS)
            busy = await self.helix.can_resume(self.agent, self.session_id)
            if not following.done() and not isinstance(busy, AgentAlreadyRunningError):
                following.cancel()
                return None
        return await following

    def _see(self, handle: RunHandle[Any]) -> RunResult[Any]:
        return self._attend(handle, follow(self.output, handle))

    def _attend(self, handle: RunHandle[Any], work: Coroutine[Any, Any, T]) -> T:
        """Show a run to its end. Ctrl-C or a typed /interrupt or /abort stops it; other lines are kept."""
        following = self.loop.start(work)
        stopping = False
        while not following.done():
            try:
                for line in self.keyboard.glance(GLANCE_SECONDS):
                    if line.strip() in ("/interrupt", "/abort"):
                        self.loop.run(handle.abort() if line.strip() == "/abort" else handle.interrupt("by the person"))
                    elif line.strip():
                        self.keyboard.keep(line)
            except KeyboardInterrupt:
                if stopping:
                    following.cancel()
                    raise Leave from None
                stopping = True
                self.output.note("\nstopping; what was done is kept. Press Ctrl-C again to leave.")
                self.loop.run(handle.interrupt("stopped from the keyboard"))
        try:
            return following.result()
        except CancelledError:
            raise Leave from None

    def _answer(self, calls: Sequence[PendingCall]) -> bool:
        """Ask the person about waiting calls; returns whether there is an answer to continue with."""
        answered = any(call.state in READY for call in calls)
        for call in calls:
            if call.state == "waiting":
                answered |= ask_person(self.output, self.keyboard, self.loop, self.helix, self.session_id, call)
        return answered

    def _tell(self, result: RunResult[Any]) -> None:
        match result:
            case Completed():
                tell_output(self.output, self.agent, result)
            case Suspended(pending=calls):
                self.output.note(f"{len(calls)} still to answer; /resume asks again, a new message gives them up")
            case Interrupted():
                self.output.note("interrupted; /resume to continue, or send a message")
            case Failed(code=code, error=error):
                self.output.note(f"failed ({code}): {error}\n/retry to try again from the last commit")
