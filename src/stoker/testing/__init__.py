"""What a user of Stoker needs to test with it: the kit for apps, a virtual clock, the conformance suite for engines."""

from stoker.testing.clock import VirtualClock
from stoker.testing.crash_runs import CrashRun
from stoker.testing.enqueued import EnqueuedJob, assert_enqueued, refute_enqueued
from stoker.testing.kit import TestKit

__all__ = ["TestKit", "assert_enqueued", "refute_enqueued", "CrashRun", "EnqueuedJob", "VirtualClock"]
