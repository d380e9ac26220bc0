"""How a client receives the outcome of a turn: as a stream, or as one answer at its end."""

from typing import Any
from weakref import WeakValueDictionary

from helix_agents.agent.agent import AnyAgent
from helix_agents.server.calls import json_response
from helix_agents.server.mcp.errors import answer
from helix_agents.server.mcp.following import CallSource, Follower
from helix_agents.server.mcp.names import Place
from helix_agents.server.mcp.requests import Request, accepts_stream
from helix_agents.server.mcp.results import still_running


def check_stream(request: Request) -> None:
    """Refuse a call before it starts anything if its client could not receive the outcome."""
    request.call.gate.check_stream(request.call.principal)


followed_here: WeakValueDictionary[str, CallSource] = WeakValueDictionary()
"""The calls that clients of this instance follow, by their requests."""


async def followed(request: Request, agent: AnyAgent, place: Place, note: str | None = None) -> Any:
    """Answer a call of a tool with the outcome of a turn."""
    call = request.call
    run = await call.executor.get_handle(agent, place.session_id)
    if accepts_stream(call):
        follower = Follower(call, request.peer, agent, place, note)
        source = CallSource(follower, request.peer, call.gate.limits.retry_after_seconds)
        if (mark := request.request_mark) is not None:
            followed_here[mark] = source
        return call.stream(source, run=run)
    follower = Follower(call, request.peer, agent, place, note)
    told = await call.outwait(follower.rest, run) or follower.farewell()
    return json_response(told or answer(place.rpc_id, still_running(place.session_id, agent.name)))


async def followed_again(request: Request, agent: AnyAgent, place: Place) -> Any:
    """Continue a stream from a place in it."""
    call = request.call
    run = await call.executor.get_handle(agent, place.session_id)
    follower = Follower(call, request.peer, agent, place)
    source = CallSource(follower, request.peer, call.gate.limits.retry_after_seconds, is_new=False)
    if (mark := request.request_mark) is not None:
        followed_here[mark] = source
    return call.stream(source, run=run)
