"""Memory across conversations: what an agent remembers, about whom, and how a program manages it."""
