"""A dashboard behind a real server, on a free port, in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import uvicorn

from stoker.web import Dashboard


class Served:
    """Serves until it is closed; the dashboard's loop is the server's."""

    def __init__(self, board: Dashboard | Any, root_path: str = "") -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            board, log_level="error", root_path=root_path, timeout_graceful_shutdown=1, timeout_keep_alive=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        until = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < until
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(90)
        assert not self._thread.is_alive()
        self._socket.close()
