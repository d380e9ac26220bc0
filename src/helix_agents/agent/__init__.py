"""What users write: agents, tools, hooks and the state they work on, as plain data that runs nothing by itself."""
