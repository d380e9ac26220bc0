"""What a talk's agent is told at set times, kept beside it: each time starts its turn once, whoever looks or dies."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.schedules import Schedule
from helix_agents.domain.sessions import SessionFilter
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor

LONGEST_MS = 60_000
"""Until then, everything that is due once has been due."""


class Plans:
    """The schedules of one talk, most of them for its own conversation, some for new ones."""

    def __init__(self, parts: Backend, root: SessionId, agent: AnyAgent, user_id: str) -> None:
        self._parts = parts
        self._root = root
        self._agent = agent
        self._user_id = user_id
        self._made: list[str] = []

    # -- what people do

    async def make(self, helix: Executor, number: int) -> None:
        """Plan something that nobody has planned before."""
        name, random = f"plan-{len(self._made) + 1}", Random(number)
        self._made.append(name)
        await self._set(helix, name, random)

    async def meddle(self, helix: Executor, number: int) -> None:
        """Change one of the plans, hold it, let it go on, or give it up."""
        if not self._made:
            return
        name, random = self._made[number % len(self._made)], Random(number)
        if await helix.schedules.find(name) is None:
            return
        match number // len(self._made) % 4:
            case 0:
                await self._set(helix, name, random)
            case 1:
                await helix.schedules.pause(name)
            case 2:
                await helix.schedules.resume(name)
            case _:
                await helix.schedules.delete(name)

    async def come_to_an_end(self, helix: Executor) -> None:
        """What comes again and again comes no more; what comes once may be waited for."""
        for schedule in (await helix.schedules.list()).items:
            if schedule.every_ms is not None:
                await helix.schedules.pause(schedule.schedule_id)

    async def _set(self, helix: Executor, name: str, random: Random) -> None:
        now = datetime.fromtimestamp(self._parts.state.now_ms() / 1000, UTC)
        at = now + timedelta(milliseconds=random.randrange(LONGEST_MS))
        await helix.schedules.set(
            name,
            self._agent,
            name,
            at=at,
            every=random.choice((None, None, 20, 50)),
            session_id=random.choice((self._root, self._root, None)),
            user_id=self._user_id,
            if_busy=random.choice(("enqueue", "enqueue", "skip")),
        )

    # -- what has to hold

    async def check(self) -> None:
        """No time of a plan was told twice."""
        for session_id, keys in (await self._told()).items():
            assert max(keys.values(), default=1) == 1, f"{session_id} was told twice: {keys.most_common(1)}"

    async def check_end(self, *, went_back: bool) -> None:
        """All is over: what was told is what the plans say was told, unless somebody took the conversation back."""
        told = await self._told()
        for name in self._made:
            schedule = await self._parts.state.find_schedule(name)
            if schedule is None:
                continue
            assert schedule.next_at is None, f"{name} is still to come"
            here, new = _times(told.get(self._root, Counter()), schedule), _times_elsewhere(told, self._root, schedule)
            assert here + new <= schedule.times, f"{name} was started {schedule.times} times, and told {here} + {new}"
            assert went_back or here + new == schedule.times, (
                f"{name} was started {schedule.times} times, and told {here} + {new}"
            )

    async def _told(self) -> dict[SessionId, Counter[str]]:
        """By session, the keys of the times that the agent was told."""
        told: dict[SessionId, Counter[str]] = {}
        for summary in (await self._parts.state.list_sessions(SessionFilter(), limit=200)).items:
            if summary.parent_session_id is None and not summary.session_id.startswith("branch-"):
                rows = await self._parts.state.load_transcript(summary.session_id)
                said = (row.message for row in rows if isinstance(row.message, UserMessage))
                told[summary.session_id] = Counter(
                    str(each.id) for each in said if str(each.id).startswith("schedule:plan-")
                )
        return told


def _times(keys: Counter[str], schedule: Schedule) -> int:
    return sum(times for key, times in keys.items() if key.split(":")[1] == schedule.schedule_id)


def _times_elsewhere(told: dict[SessionId, Counter[str]], root: SessionId, schedule: Schedule) -> int:
    return sum(_times(keys, schedule) for session_id, keys in told.items() if session_id != root)
