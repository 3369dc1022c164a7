"""Retry policy: two budgets and a backoff, in integer microseconds.

The one place that knows how long to wait. Pure: the random number ``u`` in [0, 1) is passed in.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from redrive.errors import ConfigError

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
MAX_AGE: Final = 3660 * DAY
MAX_ATTEMPTS: Final = 1000
_EXPONENT_LIMIT: Final = 1000


class Jitter(enum.StrEnum):
    """How the delay is spread. ``d`` is the capped exponential delay, ``u`` is uniform in [0, 1)."""

    FULL = "full"
    """``d * u``"""
    EQUAL = "equal"
    """``d * (0.5 + 0.5 u)``"""
    NONE = "none"
    """``d``"""


class OnUnknown(enum.StrEnum):
    """What follows an attempt whose effect may have happened."""

    RETRY = "retry"
    """Try again: the target deduplicates by the delivery ID."""
    HOLD = "hold"
    """A dead letter with cause ``ambiguous``, for a person."""
    CONFIRM = "confirm"
    """Ask a confirm function whether the effect is there before anything is sent again."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, how long and how patiently one delivery is attempted.

    All times are microseconds. ``max_attempts`` counts starts, so 6 means five retries at most. ``max_age``
    runs from the moment the work was accepted (or, for delayed work, became due). The delay before attempt
    n + 1 is ``min(base * factor ** (n - 1), cap)``, jittered, and always within [``floor``, ``cap``].
    ``retry_after_cap`` clamps what a target may ask for.

    Raises :class:`~redrive.errors.ConfigError` for values that contradict each other.
    """

    max_attempts: int = 7
    max_age: int = 24 * HOUR
    base: int = SECOND
    factor: float = 2.0
    cap: int = 15 * MINUTE
    floor: int = 0
    jitter: Jitter = Jitter.FULL
    retry_after_cap: int = DAY
    on_unknown: OnUnknown = OnUnknown.RETRY

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_age", "base", "cap", "floor", "retry_after_cap"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"policy {name} must be an integer, not {type(value).__name__}", param=name)
        for name, words in (("jitter", Jitter), ("on_unknown", OnUnknown)):
            try:
                object.__setattr__(self, name, words(getattr(self, name)))
            except ValueError:
                raise ConfigError(
                    f"policy {name} must be one of {', '.join(word.value for word in words)}", param=name
                ) from None
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ConfigError(f"policy max_attempts must be 1 to {MAX_ATTEMPTS}", param="max_attempts")
        if not 1 <= self.max_age <= MAX_AGE:
            raise ConfigError("policy max_age must be more than zero and at most ten years", param="max_age")
        if not 0 <= self.floor <= self.cap <= MAX_AGE:
            raise ConfigError("policy needs 0 <= floor <= cap <= ten years", param="cap")
        if not 0 <= self.base <= MAX_AGE:
            raise ConfigError("policy base must be 0 to ten years", param="base")
        if not 0 <= self.retry_after_cap <= MAX_AGE:
            raise ConfigError("policy retry_after_cap must be 0 to ten years", param="retry_after_cap")
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float):
            raise ConfigError(f"policy factor must be a number, not {type(self.factor).__name__}", param="factor")
        if not 1.0 <= self.factor <= 1000.0:
            raise ConfigError("policy factor must be 1 to 1000", param="factor")
        # 2 and 2.0 are equal, so they must print, and count as a version, alike.
        object.__setattr__(self, "factor", float(self.factor))

    def ceiling(self, attempt: int) -> int:
        """The delay after ``attempt`` (1, 2, ...) before jitter: exponential, capped, in microseconds.

        The exponent is capped before any arithmetic (a float ``2.0 ** 1024`` overflows), and the power is
        taken in integers, in thousandths of ``factor``, so that nothing is lost on the way.
        """
        milli = round(self.factor * 1000)
        if milli == 1000 or not 0 < self.base < self.cap:
            return min(self.base, self.cap)
        exponent = max(attempt - 1, 0)
        if exponent > _EXPONENT_LIMIT:
            return self.cap
        product: int = self.base * milli**exponent // 1000**exponent
        return min(product, self.cap)

    def delay(self, attempt: int, u: float, retry_after: int | None = None) -> int:
        """Microseconds to wait after ``attempt`` failed.

        Without ``retry_after`` the result is inside [``floor``, ``cap``]. What the target asked for, clamped
        to ``retry_after_cap``, only ever raises it: it is a floor, with full jitter of the backoff on top
        (none for ``none``), so that many deliveries told to come back at one instant do not, and asking for
        less than the backoff does not bring a retry forward.
        """
        ceiling = self.ceiling(attempt)
        u = min(max(u, 0.0), 1.0) if u == u else 0.0  # NaN
        spread = int(ceiling * u)
        if self.jitter is Jitter.FULL:
            backoff = spread
        elif self.jitter is Jitter.EQUAL:
            backoff = ceiling // 2 + int((ceiling - ceiling // 2) * u)
        else:
            backoff = ceiling
            spread = 0
        backoff = min(max(backoff, self.floor), self.cap)
        if retry_after is None:
            return backoff
        return max(backoff, min(max(retry_after, 0), self.retry_after_cap) + spread)

    def spec(self) -> str:
        """The policy as canonical JSON: what the ledger stores, and what :attr:`version` is taken over."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def version(self) -> int:
        """A 63-bit number derived from the policy's contents: equal policies have equal versions."""
        return int.from_bytes(hashlib.sha256(self.spec().encode()).digest()[:8], "big") >> 1

    @staticmethod
    def from_spec(text: str) -> Policy:
        """The policy behind :meth:`spec`. Unknown fields are an error: they would be silently ignored.

        Raises :class:`~redrive.errors.ConfigError`, also for text that is no policy at all.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            return Policy(**fields)
        except ValueError as exc:
            raise ConfigError("a stored policy is not valid JSON") from exc
        except TypeError as exc:
            raise ConfigError("a stored policy has fields that this release does not know") from exc


JOBS: Final = Policy()
"""Default for Python jobs: 7 attempts within a day, 1 s to 15 min, full jitter."""

WEBHOOKS: Final = Policy(
    max_attempts=8,
    max_age=3 * DAY,
    base=5 * SECOND,
    factor=4.0,
    cap=8 * HOUR,
    jitter=Jitter.EQUAL,
    floor=SECOND,
)
"""Default for webhooks: 8 attempts within three days; equal jitter keeps a least wait for a sick receiver."""
