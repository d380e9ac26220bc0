"""Memory across conversations: what an agent remembers, of whom, and how a program looks after it."""
