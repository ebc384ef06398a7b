"""Requests to an OpenAI-compatible server, and what came back, as records."""
