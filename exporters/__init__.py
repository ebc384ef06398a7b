"""Kneewatch's series on /metrics: names, and how each is filled."""
