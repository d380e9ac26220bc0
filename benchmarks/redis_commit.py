"""What a step commit costs on Redis, as a ratio to one script call of the plain driver that writes the same bytes."""

from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from helix_agents.backends.redis import RedisStateStore
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.seams import CountingSeam

Commit = Callable[[], Awaitable[None]]
Prepare = Callable[[int], object]


# Only the commands of a step commit: the same number of hash fields and list items, of the same length.
BY_HAND = """
local at = 1
while at <= #ARGV do
  local count, name, number = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  redis.call(name, KEYS[number], unpack(ARGV, at + 3, at + 2 + count))
  at = at + 3 + count
end
return 1
"""


class HandWritten:
    """The commands of one of our commits, on other keys, sent by the plain driver."""

    def __init__(self, client: Redis, digest: str, keys: list[str], commands: list[Any], prepare: Prepare) -> None:
        self._command = ("EVALSHA", digest, len(keys), *keys, *commands)
        self._client = client
        self._prepare = prepare
        self._step = 0

    async def commit(self) -> None:
        """Create and encode the same objects, as any step must, then make only the call with as many bytes."""
        self._step += 1
        self._prepare(self._step)
        await self._client.execute_command(*self._command)


async def captured(store: RedisStateStore, commit: Commit) -> tuple[list[str], list[Any]]:
    """The keys and commands of one commit, without the conditions it checks."""
    sender: Any = store.server._sender
    sent: list[tuple[Any, ...]] = []
    send = sender.send

    def noting(*command: Any) -> Any:
        sent.append(command)
        return send(*command)

    sender.send = noting
    try:
        await commit()
    finally:
        sender.send = send
    (command,) = sent
    count = command[2]
    keys, plan, args = list(command[3 : 3 + count]), command[3 + count].split(), list(command[4 + count :])
    commands: list[Any] = []
    for at in range(3 + 3 * int(plan[2]), len(plan), 3):
        name, number, own = plan[at : at + 3]
        commands += (own, name, number, *args[: int(own)])
        del args[: int(own)]
    return keys, commands


async def measure(quick: bool, make_session: Any, pairs: Any, prepare: Prepare) -> dict[str, float]:
    """All figures for Redis; sessions, pairs and what a step must encode are those of the other backends."""
    count, times = (20, 40) if quick else (40, 150)
    with RedisService() as service:
        seam = CountingSeam()
        store = await RedisStateStore.open(service.url, seam=seam)
        client = Redis.from_url(service.url)
        digest = await client.script_load(BY_HAND)
        ours = [make_session(store, number) for number in range(100)]
        for session in ours:
            await session.create()
            await session.commit()
        keys, commands = await captured(store, ours[0].commit)
        floor = [
            HandWritten(client, digest, [f"floor-{number}:{key}" for key in keys], commands, prepare)
            for number in range(100)
        ]
        seam.reset()
        await ours[0].commit()
        round_trips = seam.count
        one, floor_one, ratio_1 = await pairs([ours[0].commit], [floor[0].commit], count, times)
        many, floor_many, ratio_100 = await pairs(
            [session.commit for session in ours], [each.commit for each in floor], count, max(4, times // 10)
        )
        short, long = make_session(store, 1000), make_session(store, 1001)
        for session, history in ((short, 10), (long, 10_000)):
            await session.create()
            await session.fill(history)
        _, _, flatness = await pairs([long.commit], [short.commit], count, times // 4)
        await store.close()
        await client.aclose()
    return {
        "commit_us_1": one * 1e6,
        "floor_us_1": floor_one * 1e6,
        "ratio_1": ratio_1,
        "commit_us_100": many * 1e6,
        "floor_us_100": floor_many * 1e6,
        "ratio_100": ratio_100,
        "flatness": flatness,
        "round_trips": round_trips,
    }
