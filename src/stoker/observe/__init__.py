"""Metrics for monitoring systems. Nothing here is imported unless it is used."""
