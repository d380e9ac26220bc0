"""Plain frozen data: what a session, a run, a message, a chunk and an error are."""
