"""`Worker(jobs).run()` as a script would call it; a file says that it came back."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.worker import Worker
from tests.worker.apps.marked import jobs

if __name__ == "__main__":
    Worker(jobs, {"default": 4}, shutdown_grace=os.environ.get("GRACE", "5")).run()
    Path(os.environ["MARKS"]).with_name("back").touch()
