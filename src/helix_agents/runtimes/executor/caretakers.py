"""What a process does unasked: deadlines, orphans, schedules, news, webhooks, and agents of other services."""

from collections.abc import Awaitable, Callable, Sequence

from helix_agents.engine.services import DAY_MS, Services
from helix_agents.runtimes.executor.beginnings import Beginnings
from helix_agents.runtimes.executor.by_name import ByName
from helix_agents.runtimes.executor.janitor import Janitor
from helix_agents.runtimes.executor.left_to_others import LeftToOthers
from helix_agents.runtimes.executor.memory_rounds import MemoryRounds
from helix_agents.runtimes.executor.recovery import Recovered
from helix_agents.runtimes.executor.remotes import Remotes
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.schedule_runner import Execute, ScheduleRunner
from helix_agents.runtimes.executor.settings import ExecutorSettings
from helix_agents.runtimes.executor.waking import Waker
from helix_agents.runtimes.executor.webhook_teller import WebhookTeller
from helix_agents.runtimes.executor.webhooks import Webhook


class Caretakers:
    """The janitor, and what starts scheduled turns, wakes sessions with news, tells webhooks, looks after memories, and
    follows agents at other services."""

    def __init__(
        self,
        services: Services,
        runtime: Runtime,
        *,
        left: LeftToOthers,
        beginnings: Beginnings,
        by_name: ByName,
        execute: Execute,
        recover: Callable[[], Awaitable[Recovered]],
        begin_queued: Callable[[], Awaitable[int]],
        webhooks: Sequence[Webhook],
        settings: ExecutorSettings,
    ) -> None:
        self._runtime = runtime
        self.remotes = Remotes(services, resume=by_name.resume)
        self.waker = Waker(services, begin=beginnings.begin_quietly, leaves=left.leaves)
        self.schedule_runner = ScheduleRunner(services, execute=execute, leaves=left.leaves)
        self.webhook_teller = WebhookTeller(services, webhooks)
        self.memory_rounds = MemoryRounds(services)
        self.janitor = Janitor(
            services,
            resume=by_name.resume,
            resume_companions=by_name.resume_companions,
            recover=recover,
            wake=self.waker.wake,
            begin_queued=begin_queued,
            start_scheduled=self.schedule_runner.start_due,
            tidy=runtime.tidy,
            remotes=self.remotes,
            resume_grace_ms=settings.get("resume_grace_ms", 30_000),
            stream_retention_ms=settings.get("stream_retention_ms", DAY_MS),
        )

    def begin(self, seconds: float) -> None:
        """Start all of them; each checks at this interval until the process leaves."""
        self._runtime.in_background(self.janitor.run(seconds))
        self._runtime.in_background(self.remotes.pay(seconds))
        self._runtime.in_background(self.remotes.watch(seconds))
        self._runtime.in_background(self.waker.run(seconds))
        self._runtime.in_background(self.schedule_runner.run(seconds))
        self._runtime.in_background(self.webhook_teller.run(seconds))
        self._runtime.in_background(self.memory_rounds.run(seconds))
