"""What a model sees of a conversation: all of it, or the latest summary and the messages that it does not cover."""

from collections.abc import Collection, Sequence

from helix_agents.domain.messages import AssistantMessage, Message, Part, Text, ToolMessage, UserMessage
from helix_agents.domain.recollections import is_told_to_another
from helix_agents.domain.records import encode
from helix_agents.domain.skills import skills_told_by
from helix_agents.domain.summaries import Summarised, not_summarised_at, summarised_by

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
LEAST_BELIEVED = 4
"""A reported count below our own estimate divided by this is a mistake."""
TOKENS_PER_FILE = 1_600
"""About what a picture costs; its size in bytes says nothing about that."""

# The place of a message that the next summary does not count.
_NOWHERE = -1


class Shown:
    """The messages to show, kept in step with a growing transcript; only its new messages are examined.

    `failed_at` is the approximate token count at which a summary was last tried and failed. `skills` is what was last
    told about skills, which is shown in the instructions; None if nothing was. What another user was told is not shown.
    """

    def __init__(self, transcript: Sequence[Message], user_id: str | None = None) -> None:
        self._transcript = transcript
        self._user_id = user_id
        self._taken = 0
        self._messages: list[Message] = []
        self._places: list[int] = []
        self._sizes: list[int] = []
        self._size = 0
        self._read, self._size_read = 0, 0
        self.failed_at: int | None = None
        self.skills: str | None = None

    def follow(self) -> list[Message]:
        """The messages to show, including what the transcript has gained. The list only grows, until a summary replaces
        it by a new one."""
        for place in range(self._taken, len(self._transcript)):
            self._take(place, self._transcript[place])
        self._taken = len(self._transcript)
        return self._messages

    @property
    def tokens(self) -> int:
        """The approximate number of tokens: what the model reported reading, plus what came since."""
        return self._read + self._size - self._size_read

    def was_read(self, tokens: int, chosen: Sequence[Message] | None = None) -> None:
        """Take the model's own count of the messages shown last, or of those `chosen` among them. An impossible count
        is ignored: some gateways report only uncached tokens, and some report nothing."""
        believed = tokens * LEAST_BELIEVED
        if believed >= self._size or (chosen is not None and believed >= sum(map(about_tokens, chosen))):
            self._read, self._size_read = tokens, self._size

    def cut(self, keep_tokens: int) -> int | None:
        """The index at which the latest messages of about so many tokens begin; None if there is nothing to summarise.

        A result stays with its call, and the last exchange stays whatever its size, with what was said after it.
        """
        kept, begins, unread = 0, None, self._unread()
        for at in range(len(self._messages) - 1, 0, -1):
            kept += self._sizes[at]
            if begins is not None and kept > keep_tokens:
                break
            if at < unread and not isinstance(self._messages[at], ToolMessage):
                begins = at
        # Summarising only a summary would gain nothing.
        return begins if begins is not None and any(place != _NOWHERE for place in self._places[:begins]) else None

    def _unread(self) -> int:
        """The index after the last results, if the model has not read them yet; else the end."""
        at = len(self._messages)
        while at and isinstance(self._messages[at - 1], UserMessage):
            at -= 1
        return at if at and isinstance(self._messages[at - 1], ToolMessage) else len(self._messages)

    def summarised(self, until: int) -> Summarised:
        """What a summary of the messages before this one stands for."""
        before = 0 if (earlier := summarised_by(self._messages[0])) is None else earlier.replies
        replies = sum(isinstance(each, AssistantMessage) for each in self._messages[:until])
        return Summarised(messages=self._places[until], replies=before + replies)

    def _take(self, place: int, message: Message) -> None:
        told = skills_told_by(message)
        if told is not None:
            self.skills = told
            return
        if is_told_to_another(message, self._user_id):
            return
        summarised = summarised_by(message)
        if summarised is not None:
            kept = [at for at, where in enumerate(self._places) if where >= summarised.messages]
            self._messages = [self._messages[at] for at in kept]
            self._places = [self._places[at] for at in kept]
            self._sizes = [self._sizes[at] for at in kept]
            self._size = sum(self._sizes)
            self._read = self._size_read = 0
            self.failed_at = None
            self._put(0, _NOWHERE, message)
        else:
            self.failed_at = not_summarised_at(message) or self.failed_at
            self._put(len(self._messages), place, message)

    def _put(self, at: int, place: int, message: Message) -> None:
        size = about_tokens(message)
        self._messages.insert(at, message)
        self._places.insert(at, place)
        self._sizes.insert(at, size)
        self._size += size


def has_to_be_picked(transcript: Sequence[Message], user_id: str | None) -> bool:
    """Whether the transcript contains messages that the model must not see where they are. An agent that makes no
    summaries may have the conversation of one that did."""
    # This runs for every transcript that is opened, so it examines hidden messages only.
    hidden = [each for each in transcript if type(each) is UserMessage and each.hidden]
    return any(
        skills_told_by(each) is not None or is_told_to_another(each, user_id) or summarised_by(each) is not None
        for each in hidden
    )


def about_tokens(message: Message) -> int:
    """The approximate number of tokens in a message."""
    match message:
        case UserMessage(content=str() as text):
            said = len(text.encode("utf-8", "surrogatepass"))
        case UserMessage(content=tuple() as parts):
            said = _bytes_of(parts)
        case ToolMessage(in_parts=True):
            said = _bytes_of(message.parts)
        case _:
            said = len(encode(message))
    return TOKENS_PER_MESSAGE + said // BYTES_PER_TOKEN


def _bytes_of(parts: Collection[Part]) -> int:
    """The size of parts, if every image and file were a text that costs about as much."""
    texts = [each.text for each in parts if isinstance(each, Text)]
    files = sum(not isinstance(each, Text) for each in parts)
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) + files * TOKENS_PER_FILE * BYTES_PER_TOKEN
