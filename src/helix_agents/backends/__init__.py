"""Storage backends: one folder per technology, each behind its own extra, all held to the same contract."""
