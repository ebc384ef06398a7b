"""Sends load: steps, worker processes, Ray."""
