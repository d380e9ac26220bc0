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


async def test_a_stream_that_comes_and_goes_while_it_is_taken_is_made_anew(postgres_url: str) -> None:
    other = await PostgresStreamManager.open(postgres_url)
    acts = {
        "SELECT key": lambda: other.create_writer(STREAM, "r-0", "writer"),
        "INSERT INTO __agents_streams": lambda: other.delete_stream(STREAM),
    }

    async def act_after(statement: str, /) -> None:
        for beginning in [each for each in acts if statement.startswith(each)]:
            await acts.pop(beginning)()

    manager = await PostgresStreamManager.open(postgres_url, seam=act_after)
    writer = await manager.create_writer(STREAM, "r-1", "writer", turn=2)
    assert acts == {}
    assert await write(writer, delta("a")) == 1
    assert texts(await other.get_all_chunks(STREAM)) == ["a"]
    await writer.close()
    await manager.close()
    await other.close()
