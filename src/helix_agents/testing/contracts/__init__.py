"""Inheritable pytest classes, one per port: a backend that passes them keeps every guarantee the engine relies on."""
