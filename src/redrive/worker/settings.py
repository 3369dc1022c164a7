"""How a worker behaves. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves.

    ``slots`` bounds what runs at once, and with it what can be charged by one crash. A lease lasts ``lease_s``
    and is extended at a third of that, so a lost worker is noticed within ``lease_s`` plus ``reap_s``.
    ``threads`` run handlers that are not async; None, the default, is one for each slot, so that what is leased can
    start at once. With fewer, a job may wait for a thread within its lease; it is not called until it has one, and
    goes back uncharged if the worker drains first.
    """

    slots: int = 100
    lease_s: float = 30.0
    reap_s: float = 1.0
    poll_s: float = 5.0
    drain_s: float = 20.0
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise ConfigError("worker slots must be 1 to 10000", param="slots")
        if not 0.2 <= self.lease_s <= 3600:
            raise ConfigError("worker lease must be 0.2 s to 1 h", param="lease")
        if not 0.01 <= self.reap_s <= 600:
            raise ConfigError("worker reap interval must be 0.01 s to 10 min", param="reap")
        if not 0.01 <= self.poll_s <= 600:
            raise ConfigError("worker poll interval must be 0.01 s to 10 min", param="poll")
        if not 0 <= self.drain_s <= 3600:
            raise ConfigError("worker drain time must be 0 s to 1 h", param="drain")
        if self.threads is not None and not 1 <= self.threads <= 10_000:
            raise ConfigError("worker threads must be 1 to 10000, or as many as slots", param="threads")

    @property
    def thread_limit(self) -> int:
        """How many threads there may be for handlers that are not async."""
        return self.slots if self.threads is None else self.threads
