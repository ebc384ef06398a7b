"""Sends one request and stamps each read."""
