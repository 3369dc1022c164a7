"""Several worker processes under one supervisor: started, watched, stopped together, never left behind.

The supervisor does no work of its own, so that nothing a handler does can take it down. Each child is a whole
worker with its own slots and leases; the ledger keeps them apart.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""A child that lived this long had nothing wrong with its start: the next pause begins from the first again."""
LINGER_S: Final = 10.0
"""How much longer than its drain a child may take to end before it is killed."""
REFUSED: Final = frozenset({2, 4})
"""Statuses that say a child will never start like this: its settings, or the ledger's environment, are wrong."""
INTERRUPTED: Final = 130


@dataclass(slots=True)
class _Child:
    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restart_at: float | None = 0.0
    """When to start it (again); None: it has ended for good."""
    failures: int = 0
    status: int = 0


class Supervisor:
    """Keeps ``count`` processes of ``command`` running until a signal, or until every one of them is done.

    ``command(fd)`` is the argument list of one child; ``fd`` is a pipe that ends when this process does, which the
    child watches with :func:`stop_with_parent`. A child that dies on its own is started again after a pause that
    doubles up to :data:`LAST_PAUSE_S`. With ``until_idle`` a child that ended with status 0 is done. ``report``
    receives sentences for people.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        *,
        drain_s: float,
        until_idle: bool = False,
        report: Callable[[str], None],
        first_pause_s: float = FIRST_PAUSE_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._command = command
        self._children = [_Child(number + 1) for number in range(count)]
        self._drain_s = drain_s
        self._until_idle = until_idle
        self._report = report
        self._first_pause_s = first_pause_s
        self._linger_s = linger_s
        self._signals = 0
        self._forwarded = 0
        self._first_signal = ""
        self._kill_at: float | None = None
        self._refused = False

    def run(self) -> int:
        """Returns the worst child's status: 0 when all ended well, 128 + n for one ended by signal n.

        The first SIGTERM or SIGINT goes to every child, which drains; the second kills them and returns 130.
        Call it in the main thread.
        """
        watched, held = os.pipe()
        try:
            with self._waking() as selector:
                while True:
                    self._act()
                    self._start_due(watched)
                    if not any(child.process or child.restart_at is not None for child in self._children):
                        break
                    selector.select(self._patience())
                    self._reap()
        finally:
            # Whatever happens here, the children's pipe ends and they stop.
            os.close(held)
            os.close(watched)
        if self._signals > 1:
            return INTERRUPTED
        return max((child.status for child in self._children), default=0)

    @contextlib.contextmanager
    def _waking(self) -> Iterator[selectors.BaseSelector]:
        """Signals become readable bytes, so that none is lost between looking and sleeping."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        old = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._on_signal),
            signal.SIGINT: signal.signal(signal.SIGINT, self._on_signal),
            signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda number, frame: None),
        }
        selector = _Drained(reader)
        try:
            yield selector
        finally:
            selector.close()
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            os.close(reader)
            os.close(writer)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        self._first_signal = self._first_signal or signal.Signals(number).name

    def _act(self) -> None:
        """Pass on what was asked for since the last look."""
        # Read once: a signal that comes while this one is passed on is for the next look.
        signals = self._signals
        if self._forwarded >= signals and not self._overdue():
            return
        if self._forwarded == 0 and signals == 1:
            self._report(f"{self._first_signal}: {len(self._children)} workers drain; a second signal kills them")
            self._stop()
        elif self._forwarded < signals:
            self._report("second signal: killing the workers; their leases expire and are reaped")
            self._kill()
        else:
            self._report("a worker outlived its drain and is killed; its leases expire and are reaped")
            self._kill()
        self._forwarded = signals

    def _overdue(self) -> bool:
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    def _stop(self) -> None:
        self._kill_at = time.monotonic() + self._drain_s + self._linger_s
        for child in self._children:
            child.restart_at = None
            if child.process is not None:
                # SIGTERM for a SIGINT too: a child that is still importing would die of KeyboardInterrupt, noisily.
                child.process.terminate()

    def _kill(self) -> None:
        self._kill_at = None
        for child in self._children:
            child.restart_at = None
            if child.process is not None:
                child.process.kill()

    @property
    def was_stopped(self) -> bool:
        """Whether a signal asked for the end."""
        return self._signals > 0

    @property
    def _stopping(self) -> bool:
        return self._signals > 0 or self._refused

    def _start_due(self, watched: int) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.restart_at is None or child.restart_at > now or self._stopping:
                continue
            child.restart_at = None
            # A session of its own: a terminal's Ctrl-C reaches the supervisor alone, and is passed on once.
            child.process = subprocess.Popen(  # noqa: S603 - the command is our own
                list(self._command(watched)),
                pass_fds=(watched,),
                start_new_session=True,
            )
            child.started = now

    def _patience(self) -> float | None:
        moments = [child.restart_at for child in self._children if child.restart_at is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _reap(self) -> None:
        for child in self._children:
            if child.process is None or child.process.poll() is None:
                continue
            code = child.process.returncode
            pid, child.process = child.process.pid, None
            child.status = 128 - code if code < 0 else code
            if self._stopping:
                if code == -signal.SIGTERM:
                    child.status = 0  # it had not begun to work
                continue
            how = _how(code)
            if child.status in REFUSED:
                self._report(f"worker {child.number} (pid {pid}) could not start; stopping all")
                self._refused = True
                self._stop()
            elif self._until_idle and code == 0:
                continue
            else:
                now = time.monotonic()
                child.failures = 1 if now - child.started > STEADY_S else child.failures + 1
                pause = min(self._first_pause_s * 2 ** min(child.failures - 1, 10), LAST_PAUSE_S)
                child.restart_at = now + pause
                self._report(f"worker {child.number} (pid {pid}) {how}; starting it again in {pause:g} s")


class _Drained(selectors.DefaultSelector):
    """Waits on one pipe and empties it."""

    def __init__(self, reader: int) -> None:
        super().__init__()
        self._reader = reader
        self.register(reader, selectors.EVENT_READ)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._reader, 512)) == 512:
                pass
        return ready


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def stop_with_parent(fd: int, drain_s: Callable[[], float]) -> threading.Thread:
    """In a child: drain when the supervisor is gone, however it went, and end if the drain does not.

    ``fd`` is the reading end of a pipe whose writing end only the supervisor holds: the kernel closes it with that
    process, even on SIGKILL. ``drain_s`` is asked when that happens.
    """
    os.set_inheritable(fd, False)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(drain_s() + LINGER_S)
        os._exit(1)

    thread = threading.Thread(target=watch, name="redrive-parent", daemon=True)
    thread.start()
    return thread
