"""Which load to try next, and what to conclude from it."""
