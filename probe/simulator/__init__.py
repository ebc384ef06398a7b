"""vLLM's scheduler in virtual time."""
