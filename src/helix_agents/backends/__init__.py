"""Where sessions live: one folder per technology, each one extra, all under one contract."""
