"""How long the ledger keeps what has ended, and how far retention has come; the work is in :mod:`redrive.ledger.purge`.

A delivery goes when its disposition's time has passed since its last entry (attempt, transition, dead letter), and
never under an open dead letter. An event's payload goes with the event's last delivery; events that went to nobody go
as ``delivered`` ones do, and not within a day. What is left, the delivery ID or event ID with the payload's hash, keeps
duplicates out for ``identity`` after that; then it is forgotten, and the same key is new work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from redrive.domain.delivery import Disposition
from redrive.domain.policy import DAY, HOUR
from redrive.domain.values import duration_us
from redrive.errors import ConfigError, InvalidInput
from redrive.ledger.records import Record
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

FOREVER: Final = "forever"
IDENTITY: Final = 365 * DAY
"""How long a tombstone stays where nothing is said, in microseconds; longer where deliveries are kept longer."""
SHORTEST: Final = HOUR
"""No lease lasts longer: by then nobody still reports what came of an attempt."""
ENDED: Final = (Disposition.DELIVERED, Disposition.NO_OP, Disposition.DEAD, Disposition.CANCELLED)
"""The ends that there are, in the order that statements name them."""

_UNITS: Final = (("d", DAY), ("h", HOUR), ("m", HOUR // 60), ("s", 1_000_000), ("ms", 1000), ("us", 1))


@dataclass(frozen=True, slots=True)
class RetentionRules(Record):
    """How long finished deliveries are kept, by disposition, in microseconds; None is for ever, and the default.

    ``dead`` ones are kept, whatever is said, until their dead letters are closed. ``identity`` is how long a tombstone
    keeps duplicates out after that, and no shorter than the others. Raises :class:`ConfigError`.
    """

    delivered: int | None = None
    no_op: int | None = None
    dead: int | None = None
    cancelled: int | None = None
    identity: int | None = IDENTITY

    def __post_init__(self) -> None:
        for name, kept in self.items():
            if kept is not None and kept < SHORTEST:
                raise ConfigError(f"retention: {name} must be at least {_text(SHORTEST)}", param="retention")
        longest = self.longest
        if self.identity is not None and self.identity < longest:
            raise ConfigError(
                f"retention: identity must be at least {_text(longest)}, as long as deliveries are kept",
                param="retention",
                hint="it is what keeps duplicates out after a delivery is gone",
            )

    @classmethod
    def parse(cls, raw: RetentionRules | Mapping[str, Any] | str) -> Self:
        """Rules as settings say them: a table of lengths of time, or ``delivered=90d, no_op=7d``; or ``forever``."""
        if isinstance(raw, cls):
            return raw
        told = isinstance(raw, Mapping)
        if isinstance(raw, str):
            pairs = [part.partition("=") for part in raw.split(",") if part.strip()]
            raw = {name.strip(): value.strip() for name, _, value in pairs}
        if not isinstance(raw, Mapping):
            raise ConfigError(
                "retention must be a table, for example [retention] with delivered = '90d'", param="retention"
            )
        names = [each.name for each in fields(cls)]
        given: dict[str, int | None] = {}
        for name, value in raw.items():
            if name not in names:
                what = f"retention has no {name!r}" if told else "retention has another rule than there is"
                raise ConfigError(f"{what}; there are: {', '.join(names)}", param="retention")
            try:
                given[name] = None if value == FOREVER else duration_us(value, name)
            except InvalidInput as exc:
                raise ConfigError(f"retention: {exc.message}, or {FOREVER!r}", param="retention") from None
        given.setdefault("identity", max(IDENTITY, *(kept or 0 for kept in given.values()), 0))
        return cls(**given)

    def items(self) -> Iterator[tuple[str, int | None]]:
        """(name, microseconds) of each rule."""
        return ((each.name, getattr(self, each.name)) for each in fields(self))

    def of(self, disposition: Disposition) -> int | None:
        """How long deliveries with this end are kept."""
        kept: int | None = getattr(self, disposition.label)
        return kept

    @property
    def longest(self) -> int:
        """The longest that any delivery is kept and then taken."""
        return max(self._kept, default=0)

    @property
    def shortest(self) -> int | None:
        """The shortest that any delivery is kept; None where all are kept for ever."""
        return min(self._kept, default=None)

    @property
    def _kept(self) -> list[int]:
        return [kept for kept in map(self.of, ENDED) if kept is not None]

    @property
    def window(self) -> str:
        """The deduplication window that these rules imply, for people."""
        if self.shortest is None:
            return "a key that was ever enqueued stays known"
        if self.identity is None:
            return "a key that was ever enqueued stays known, also when its delivery is gone"
        each = [(_text(kept + self.identity), d.label) for d in ENDED if (kept := self.of(d)) is not None]
        told = ", ".join(f"{text} after it ended as {label}" for text, label in each)
        return f"a key enqueued again later than {told}, is new work"

    def __str__(self) -> str:
        return ", ".join(f"{name}={FOREVER if kept is None else _text(kept)}" for name, kept in self.items())


def _text(us: int) -> str:
    """A length of time as :func:`duration_us` reads it back, in the largest unit that says it exactly."""
    unit, size = next((unit, size) for unit, size in _UNITS if us % size == 0)
    return f"{us // size}{unit}"


@dataclass(frozen=True, slots=True)
class Purged(Record):
    """What a run took, or (``dry_run``) would take; then events are not told, but those that are to be forgotten."""

    delivered: int = 0
    no_op: int = 0
    dead: int = 0
    cancelled: int = 0
    events: int = 0
    """Events that lost their payload."""
    identities_forgotten: int = 0
    events_forgotten: int = 0
    more: bool = False
    """It stopped at its limit, or was told to."""
    dry_run: bool = False

    @property
    def deliveries(self) -> int:
        """Deliveries of every disposition."""
        return self.delivered + self.no_op + self.dead + self.cancelled

    @property
    def anything(self) -> bool:
        """Whether the ledger was, or would be, changed."""
        return bool(self.deliveries or self.events or self.identities_forgotten or self.events_forgotten)


@dataclass(frozen=True, slots=True)
class RetentionView(Record):
    """How far retention has come."""

    oldest_at: int | None
    """When the oldest delivery that is left was accepted."""
    ran_at: int | None
    """When a worker last began a run by itself."""
    purged: int
    """Deliveries that were ever taken."""


def view(tx: Tx) -> RetentionView:
    """How far retention has come; cheap at any size."""
    ran_at, _, purged, _, _, oldest_at = tx.rows(sql("retention_state"))[0]
    return RetentionView(oldest_at, ran_at or None, purged)
