"""Agents of other people as sub-agents: a client of A2A 1.0."""
