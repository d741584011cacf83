"""Stoker inside frameworks: each module needs its framework and nothing else imports it."""
