"""Scheduler, helper process, logs."""
