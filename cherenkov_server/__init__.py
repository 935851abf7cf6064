"""OpenAI-compatible serving (extra `server`)."""
