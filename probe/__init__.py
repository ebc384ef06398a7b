"""Kneewatch's probe: load, measurement, capacity, and the service around them."""

__version__ = "0.1.0"
