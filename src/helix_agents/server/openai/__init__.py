"""OpenAI's Responses API over the same sessions: OpenAI clients work with nothing but another base URL."""
