"""Threads for sync handlers."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Item = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """At most ``limit`` threads, started when they are needed and kept.

    They are daemons, which an executor's are not: a handler that never returns must not keep a drained process from
    ending.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._idle = 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Call ``function`` in a thread, when one is free. Until then the future can be cancelled."""
        future: Future[Any] = Future()
        with self._lock:
            self._queue.put((future, function))
            if self._idle:
                self._idle -= 1
            elif self._count < self._limit:
                self._count += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """Start nothing more; threads end when what they run has returned."""
        with self._lock:
            # A thread may take the last item at any moment: ask for one, not whether there is one.
            with contextlib.suppress(queue.Empty):
                while True:
                    item = self._queue.get_nowait()
                    if item is not None:
                        item[0].cancel()
            for _ in range(self._count):
                self._queue.put(None)
            self._count = self._idle = 0

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, function = item
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as exc:
                    future.set_exception(exc)
                else:
                    future.set_result(result)
                    del result
            # A waiting thread must not keep the last payload alive.
            del item, future, function
            with self._lock:
                if self._queue.empty():
                    self._idle += 1
