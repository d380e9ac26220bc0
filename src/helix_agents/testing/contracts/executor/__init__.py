"""The scenarios every runtime has to play alike, through nothing but the public API."""
