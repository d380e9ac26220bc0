"""Inheritable pytest classes, one per port: a backend that passes them keeps every promise the engine relies on."""
