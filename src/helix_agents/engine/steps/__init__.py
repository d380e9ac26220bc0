"""The bodies of the four effects: opening a run, asking the model, running a tool, committing the step."""
