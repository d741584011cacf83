"""Statements inside a transaction of the user: one adapter per driver and library."""
