"""The run loop, written once: it decides, and leaves every side effect to the runtime that drives it."""
