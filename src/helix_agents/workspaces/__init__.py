"""Where workspaces come from: the memory of a process, or a folder on its machine."""
