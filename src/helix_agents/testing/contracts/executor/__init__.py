"""The scenarios that every runtime has to play in the same way, using only the public API."""
