"""Numbered places where a test can make this process die.

``REDRIVE_FAILPOINT=name:n`` kills the process (SIGKILL: no handler, no flush) when ``name`` is passed for the
n-th time; ``name:n:exit`` uses ``os._exit`` and ``name:n:stop`` stops it with SIGSTOP. Without the variable a
failpoint is one call of an empty function. The names, in the order a delivery meets them, are :data:`NAMES`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

NAMES: Final = (
    "enqueue.before_commit",
    "enqueue.after_commit",
    "reserve.before_commit",
    "reserve.after_commit",
    "execute.before",
    "connect.before",
    "send.before",
    "send.after",
    "receive.head",
    "execute.after",
    "close.before_commit",
    "close.after_commit",
    "close_in.before_commit",
    "extend.before_commit",
    "reap.before_commit",
    "reap.after_commit",
)
"""Every failpoint there is."""


def _disarmed(name: str) -> None:
    return None


def _arm(spec: str) -> Callable[[str], None]:
    target, _, rest = spec.partition(":")
    count, _, action = rest.partition(":")
    if target not in NAMES or action not in ("", "kill", "exit", "stop") or not count.isdecimal():
        raise SystemExit(f"REDRIVE_FAILPOINT={spec!r}: expected NAME:N[:kill|exit|stop], NAME one of {NAMES}")
    left = int(count)

    def armed(name: str) -> None:
        nonlocal left
        if name != target:
            return
        left -= 1
        if left == 0:
            if action == "exit":
                os._exit(97)
            os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)

    return armed


_SPEC = os.environ.get("REDRIVE_FAILPOINT")
ARMED = bool(_SPEC)
"""Whether any failpoint is armed in this process."""
hit: Callable[[str], None] = _arm(_SPEC) if _SPEC else _disarmed
"""Pass the failpoint ``name``."""
