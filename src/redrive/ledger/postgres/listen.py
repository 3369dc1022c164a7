"""Being told that there may be work: a connection that listens, and nothing that depends on it."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final

from redrive.ledger.postgres.connect import PostgresUrl, connect
from redrive.ledger.postgres.statements import text_of

if TYPE_CHECKING:
    import psycopg

_LOOK_S: Final = 0.5
_ASK_S: Final = 15.0
"""Seconds of silence after which the connection is asked whether it still lives."""
_log = logging.getLogger("redrive.ledger")


class Listener:
    """Calls ``heard()`` in its own thread after a NOTIFY, and after each new connection: something may be missed."""

    def __init__(self, url: PostgresUrl, heard: Callable[[], None], own: Container[int]) -> None:
        self._url = url
        self._heard = heard
        self._own = own
        """Server processes that notify for this process, which knows already."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redrive-listen", daemon=True)
        self._conn: psycopg.Connection[Any] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with connect(self._url) as conn:
                    conn.execute(text_of("listen", self._url.schema).dollar)
                    failures = 0
                    self._heard()
                    self._listen(conn)
            except Exception as exc:
                if self._stop.is_set():
                    return
                failures += 1
                if failures == 1:
                    _log.warning("not listening for new work, polling meanwhile: %s", str(exc).partition("\n")[0])
                self._stop.wait(min(0.1 * 2**failures, 10.0) * (0.5 + random.random()))  # noqa: S311 - spreads load

    def _listen(self, conn: psycopg.Connection[Any]) -> None:
        quiet = 0.0
        while not self._stop.is_set():
            said = list(conn.notifies(timeout=_LOOK_S, stop_after=1))
            if said:
                quiet = 0.0
                if any(one.pid not in self._own for one in said):
                    self._heard()
                continue
            quiet += _LOOK_S
            if quiet >= _ASK_S:
                quiet = 0.0
                conn.execute(text_of("ping", self._url.schema).dollar)
