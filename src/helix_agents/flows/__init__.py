"""Flows: agents whose next step is decided by a Python function in place of a model."""
