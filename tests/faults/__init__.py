"""Faults injected from outside, one file per area; docs/reliability.md lists them."""
