"""What a user of Stoker needs to test with it: a virtual clock, a harness, and the conformance suite for engines."""

from stoker.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
