"""Calls that the model's provider carries out itself, as readers see them and as the reply keeps them."""

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from helix_agents.domain.chunks import ProviderToolEnd, ProviderToolInput, ProviderToolStart, SourceChunk
from helix_agents.domain.errors import ChunkTooLargeError, ModelError
from helix_agents.domain.messages import AssistantMessage, ProviderCall, Source
from helix_agents.domain.records import JSON
from helix_agents.domain.usage import UsageEntry
from helix_agents.engine.scope import RunScope
from helix_agents.ports.llm import ProviderCallEnded, ProviderCallInput, ProviderCallStarted

CUT_OFF = "The reply was cut off before this call ended."


class ProviderCalls:
    """The provider's own calls in one reply, as far as it has come. Each is told in order: start, input, end."""

    def __init__(self, scope: RunScope, step: int) -> None:
        self._scope = scope
        self._step = step
        self._calls: list[_Call] = []

    async def begin(self, started: ProviderCallStarted, *, thoughts: int, text: int) -> None:
        """A call has started, after this much reasoning and text."""
        await self._begin(started.id, started.name, thoughts, text)

    async def told_input(self, given: ProviderCallInput) -> None:
        """It is known what a call is made with."""
        await self._set_input(self._going_on(given.id), given.arguments)

    async def end(self, ended: ProviderCallEnded) -> None:
        """A call is over."""
        await self._end(self._going_on(ended.id), ended.result, error=ended.error)

    async def cut(self) -> tuple[ProviderCall, ...]:
        """The calls of a reply that was cut off: those that had not ended have failed."""
        for call in self._calls:
            if not call.ended:
                await self._end(call, CUT_OFF, error=True)
        return tuple(call.made for call in self._calls)

    async def whole(self, reply: AssistantMessage) -> AssistantMessage:
        """The whole reply with our ids; readers have now seen all of its calls, and its sources."""
        made = [await self._completed(call) for call in reply.provider_calls]
        for call in self._calls:
            if not call.ended:
                await self._end(call, None, error=False)
        await tell_sources(self._scope, self._step, reply.sources)
        return msgspec.structs.replace(reply, provider_calls=tuple(made))

    async def _completed(self, said: ProviderCall) -> ProviderCall:
        call = next((each for each in self._calls if each.provider_id == said.id and not each.kept), None)
        if call is None:
            call = await self._begin(said.id, said.name, said.thoughts_before, said.text_before)
        call.kept = True
        if not call.ended:
            await self._set_input(call, said.arguments)
            await self._end(call, said.result, error=said.error)
        return msgspec.structs.replace(said, id=call.made.id)

    async def _begin(self, provider_id: str, name: str, thoughts: int, text: int) -> "_Call":
        # As with other calls, the id is rewritten before the first chunk that carries it.
        own = self._scope.call_ids.claim(provider_id)
        call = _Call(provider_id, ProviderCall(id=own, name=name, thoughts_before=thoughts, text_before=text))
        self._calls.append(call)
        await self._scope.show(self._scope.chunk(ProviderToolStart, self._step, tool_call_id=own, tool_name=name))
        return call

    async def _set_input(self, call: "_Call", arguments: dict[str, JSON] | str) -> None:
        if call.has_input:
            return
        call.has_input = True
        call.made = msgspec.structs.replace(call.made, arguments=arguments)
        await tell_input(self._scope, self._step, call.made)

    async def _end(self, call: "_Call", result: JSON, *, error: bool) -> None:
        call.ended = True
        call.made = msgspec.structs.replace(call.made, result=result, error=error)
        await tell_end(self._scope, self._step, call.made)

    def _going_on(self, provider_id: str) -> "_Call":
        found = next((call for call in reversed(self._calls) if call.provider_id == provider_id), None)
        if found is None:
            reason = f"its adapter went on with the provider's call {provider_id!r}, which it had not begun"
            raise ModelError(self._scope.model.name, reason)
        return found


class _Call:
    def __init__(self, provider_id: str, made: ProviderCall) -> None:
        self.provider_id = provider_id
        self.made = made
        self.has_input = False
        self.ended = False
        self.kept = False


async def tell_again(scope: RunScope, step: int, call: ProviderCall) -> None:
    """Show a recorded call again, from its start to its end."""
    await scope.show(scope.chunk(ProviderToolStart, step, tool_call_id=call.id, tool_name=call.name))
    await tell_input(scope, step, call)
    await tell_end(scope, step, call)


async def tell_input(scope: RunScope, step: int, call: ProviderCall) -> None:
    """Show what a call is made with; if that is too large for a chunk, it is only in the transcript."""
    about = {"tool_call_id": call.id, "tool_name": call.name}
    await scope.show(scope.chunk(ProviderToolInput, step, **about, arguments=call.arguments))


async def tell_end(scope: RunScope, step: int, call: ProviderCall) -> None:
    """Show that a call is over. A result that is too large for a chunk is only in the transcript."""
    about = {"tool_call_id": call.id, "tool_name": call.name, "error": call.error}
    try:
        await scope.writer.write(scope.chunk(ProviderToolEnd, step, **about, result=call.result))
    except ChunkTooLargeError:
        with suppress(ChunkTooLargeError):
            await scope.writer.write(scope.chunk(ProviderToolEnd, step, **about))


async def tell_sources(scope: RunScope, step: int, sources: Iterable[Source]) -> None:
    """Show what a reply refers to."""
    for source in sources:
        await scope.show(scope.chunk(SourceChunk, step, **msgspec.structs.asdict(source)))


def usage_of(scope: RunScope, step: int, calls: Iterable[ProviderCall]) -> tuple[UsageEntry, ...]:
    """The provider's own calls as entries: how long each took is not known."""
    return tuple(
        scope.usage_entry(step, source_type="tool", source_name=call.name, success=not call.error) for call in calls
    )
