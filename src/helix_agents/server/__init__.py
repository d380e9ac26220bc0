"""Agents over HTTP: an ASGI application on any executor, with server-sent events and chat for real front ends."""
