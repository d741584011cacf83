"""The check-up of a store: facts that an engine reads, and what they mean. No driver's text, no clock, no I/O."""
