"""Where handlers run that must not run on the loop: plain functions in threads, killable ones in processes."""

from stoker.executors.choose import Executors, is_suspect

__all__ = ["Executors", "is_suspect"]
