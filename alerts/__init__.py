"""Prometheus rules, generated from the configuration and the list of series."""
