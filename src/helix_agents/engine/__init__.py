"""The run loop, written once. It makes the decisions and leaves every side effect to the runtime that drives it."""
