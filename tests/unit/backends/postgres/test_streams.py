"""What is particular to streams in Postgres: their readers are told of changes for as long as they read."""

import asyncio

import pytest

from helix_agents.backends.postgres import PostgresStreamManager, streams
from helix_agents.testing.stream_scenes import PATIENCE, STREAM, delta, next_of, open_writer, texts, write

_IS_WATCHED = "SELECT watched_until > clock_timestamp() FROM __agents_streams WHERE stream_id = ?"


async def test_who_follows_a_stream_for_longer_than_its_mark_lasts_marks_it_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MARK_AGAIN_SECONDS", 0.0)
    manager = await PostgresStreamManager.open(postgres_url)
    try:
        writer = await open_writer(manager)
        reader = await manager.create_resumable_reader(STREAM)
        assert reader is not None
        waiting = asyncio.create_task(next_of(reader))

        async def until_watched() -> None:
            async with asyncio.timeout(PATIENCE):
                while not (await manager._db.all(_IS_WATCHED, (STREAM,)))[0][0]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await until_watched()
        await manager._db.execute("UPDATE __agents_streams SET watched_until = '-infinity'", ())
        await until_watched()
        await write(writer, delta("a"))
        assert texts([await waiting]) == ["a"]
        await reader.close()
        await writer.close()
    finally:
        await manager.close()
