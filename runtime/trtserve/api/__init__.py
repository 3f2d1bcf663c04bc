"""The OpenAI-compatible HTTP API over any engine."""
