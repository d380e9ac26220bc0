"""One module per command of `helix`, named as it is typed."""
