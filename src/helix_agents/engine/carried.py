"""What the next commit of a run takes along besides the reply and results of its step."""

from collections.abc import Iterable

from helix_agents.domain.budgets import Spending
from helix_agents.domain.entries import Change
from helix_agents.domain.ids import RunId, ToolCallId
from helix_agents.domain.memories import MemoryId
from helix_agents.domain.messages import Message, UserMessage
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites
from helix_agents.engine.desk import SPENDING, Note, RestingReply


class Carried:
    """What was left for the next commit since the last one, by effects of this process and of others.

    `notices` are hidden messages that the model already sees: they are in the transcript as well. Those that are
    `told_with_reply` are stored with the reply they preceded; the others have a note each. `late_answers` are the calls
    that notices report on. `stale_effects` are ledger entries that no run will return to, and `forgotten_children` were
    let go of for the same reason. `migration` brings the state to a changed type.

    `unknown` has the notes of calls whose outcome a person must be asked about from this round on. `settled_companions`
    have ended, as the model was told; `news_changes` record which other news it was told. `entries` are all changes
    that state capabilities made in this step.
    """

    def __init__(self, transcript: list[Message]) -> None:
        self._transcript = transcript
        self._notes: dict[str, Note] = {}
        self.migration: StepWrites = NO_WRITES
        self.notices: list[UserMessage] = []
        self.told_with_reply: list[UserMessage] = []
        self.late_answers: tuple[ToolCallId, ...] = ()
        self.stale_effects: tuple[ToolCallId, ...] = ()
        self.forgotten_children: tuple[SubSessionRefUpdate, ...] = ()
        self.unknown: dict[ToolCallId, Note] = {}
        self.settled_companions: tuple[SubSessionRefUpdate, ...] = ()
        self.news_told = False
        self.news_changes: tuple[Change, ...] = ()
        self.entries: list[Change] = []
        self.remembered: tuple[MemoryId, ...] | None = None

    @property
    def writes(self) -> list[StepWrites]:
        """State writes: the migration, and what hooks wrote between two commits."""
        if not self._notes and not self.migration:
            return []
        noted = (self.migration, *(note.writes for note in self._notes.values()))
        return [writes for writes in noted if writes]

    @property
    def usage(self) -> tuple[UsageEntry, ...]:
        """What hooks that ran between two commits counted."""
        return tuple(entry for note in self._notes.values() for entry in note.usage)

    @property
    def spending_below(self) -> dict[RunId, Spending]:
        """What sub-agents of this step have reported using so far."""
        noted = ((name, note.spending) for name, note in self._notes.items())
        return {name.removeprefix(SPENDING): spending for name, spending in noted if spending is not None}

    def has(self, name: str) -> bool:
        """Whether a note of this name is here."""
        return name in self._notes

    def take(self, name: str, note: Note) -> None:
        """Take in a note, in place of an earlier one of the same name."""
        self._notes[name] = note
        self.tell(note.notices)
        self.late_answers = note.late_answers or self.late_answers
        self.stale_effects = note.stale_effects or self.stale_effects
        self.forgotten_children = note.forgotten or self.forgotten_children
        if note.remembered is not None:
            self.remembered = note.remembered
        if note.unknown:
            self.unknown[name] = note

    def take_reply(self, reply: RestingReply) -> None:
        """Take in what the model was told before a reply that another process or a dead attempt asked for. No effect in
        the process that asked, because it has this already."""
        if self.news_told:
            return
        self.tell(reply.notices)
        self.settled_companions = reply.companions
        self.news_told, self.news_changes = True, reply.entries
        self.entries.extend(reply.entries)

    def tell(self, notices: Iterable[UserMessage]) -> None:
        """Show the model hidden messages that the next commit adds to the transcript."""
        for notice in notices:
            self.notices.append(notice)
            self._transcript.append(notice)

    def tell_with_reply(self, notice: UserMessage) -> None:
        """Show the model a hidden message that is recorded with its reply, whichever try of the step gives it."""
        self.told_with_reply.append(notice)
        self.tell((notice,))

    def clear(self) -> None:
        """Drop everything: the commit has taken it."""
        self.migration = NO_WRITES
        self._notes.clear()
        self.notices.clear()
        self.told_with_reply.clear()
        self.late_answers = ()
        self.stale_effects = ()
        self.forgotten_children = ()
        self.unknown.clear()
        self.settled_companions = ()
        self.news_told = False
        self.news_changes = ()
        self.entries.clear()
        self.remembered = None
