"""Capacity over months: shifts, headroom, compare."""
