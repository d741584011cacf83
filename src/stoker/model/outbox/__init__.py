"""The rules of streams: what is appended, numbered, delivered, and set aside."""
