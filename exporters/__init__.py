"""Kneewatch's Prometheus series: what the client saw, what the server says, what it can take."""
