"""Deliveries and their runs are in different slots of Redis: a process may die between the two."""

import pytest
from msgspec.structs import replace

from helix_agents.backends.redis import deliveries
from helix_agents.domain.commits import StartRun
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.webhooks import owed
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import RedisService


async def test_what_was_delivered_before_its_run_was_marked_is_not_owed_again(
    redis_service: RedisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_backend(redis_service.new_url()) as parts:
        store = parts.state
        create = CreateSession(agent_type="clerk")
        await store.start_run(StartRun(session_id="s", run_id="r", create=create, tell=True))
        run = await store.update_run_status("r", "completed")
        delivery = owed(run, "turn.completed", "hook", now=1, revision="1")

        def die(*_: object, **__: object) -> None:
            raise InterruptedError

        monkeypatch.setattr(deliveries, "put_run", die)
        with pytest.raises(InterruptedError):
            await store.owe_deliveries(run, [delivery])
        monkeypatch.undo()
        assert await store.list_untold() == (run,)
        assert await store.list_due_deliveries("hook", 1) == (delivery,)
        done = replace(delivery, state="delivered", next_at=9, revision="2")
        assert await store.save_delivery(done, replaces="1")
        again = owed(run, "turn.completed", "hook", now=5, revision="3")
        assert await store.owe_deliveries(run, [again])
        assert await store.list_untold() == ()
        assert await store.find_delivery(delivery.delivery_id) == done
        assert await store.list_due_deliveries("hook", 10) == ()
