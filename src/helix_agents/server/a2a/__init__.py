"""A2A over the same sessions, for other people's agents: a context is a session, a task is what follows a message."""
