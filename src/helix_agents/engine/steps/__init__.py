"""The bodies of the four effects: opening a run, asking the model, running a call, committing the step."""
