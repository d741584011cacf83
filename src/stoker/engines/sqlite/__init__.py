"""The embedded engine: one SQLite file, many processes on one host."""
