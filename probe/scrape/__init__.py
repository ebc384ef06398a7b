"""Reads a server's metrics page; one file per engine."""
