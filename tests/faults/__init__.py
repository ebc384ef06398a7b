"""Faults injected from outside, one file per area; docs/reliability.md has a row for each."""
