"""How a worker behaves. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves.

    ``slots`` bounds what runs at once, and with it what can be charged by one crash. A lease lasts ``lease_s``
    and is extended at a third of that, so a lost worker is noticed within ``lease_s`` plus ``reap_s``.
    """

    slots: int = 100
    lease_s: float = 30.0
    reap_s: float = 1.0
    poll_s: float = 5.0
    drain_s: float = 20.0
    threads: int = 32

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
        if not 1 <= self.threads <= 1000:
            raise ConfigError("worker threads must be 1 to 1000", param="threads")
