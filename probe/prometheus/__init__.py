"""Queries to a Prometheus: firing pages, history."""
