"""A mock vLLM server over HTTP, for the demo, `sim` and tests."""
