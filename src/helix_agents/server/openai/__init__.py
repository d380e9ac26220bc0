"""OpenAI's Responses over the same sessions, for its own clients with another address."""
