"""A2A over the same sessions, for agents of others: a context is a session, a task what follows from a message."""
