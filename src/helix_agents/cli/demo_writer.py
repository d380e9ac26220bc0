"""The process that `helix demo` kills: it stores one message after another and reports each once it is durable."""

import asyncio
import sys


async def write_for_ever(url: str, session_id: str) -> None:
    """Append messages to a new session until somebody ends this process."""
    from helix_agents.domain.ids import SessionId
    from helix_agents.domain.messages import UserMessage
    from helix_agents.ports.backend import open_backend

    async with await open_backend(url) as backend:
        session = SessionId(session_id)
        await backend.state.create_session(session)
        while True:
            line = UserMessage(content="Are you still there?")
            count = await backend.state.append_messages(session, [line])
            sys.stdout.write(f"{count}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write_for_ever(*sys.argv[1:]))
