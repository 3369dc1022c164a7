"""Which event types a subscription wants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redrive.domain.values import SEGMENT, check_label
from redrive.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which event types a subscription wants.

    ============== =======================================================================
    ``order.paid`` exactly this type
    ``order.*``    ``order.`` and exactly one more segment (``*`` stands for one segment, anywhere)
    ``order.**``   ``order.`` and one or more segments (``**`` is allowed at the end only)
    ``*``, ``**``  every type
    ============== =======================================================================

    Matching is case-sensitive, and a wildcard is a whole segment.
    """

    text: str
    _segments: tuple[str, ...]
    _open: bool

    @classmethod
    def parse(cls, text: object, param: str = "event_types") -> EventFilter:
        """Raises :class:`InvalidInput` for anything that is not a filter."""
        checked = check_label(text, param)
        if checked in ("*", "**"):
            return cls(checked, (), True)
        segments = checked.split(".")
        is_open = segments[-1] == "**"
        fixed = segments[:-1] if is_open else segments
        for segment in fixed:
            if segment == "**":
                raise InvalidInput("** is allowed at the end of an event filter only", param=param)
            if "*" in segment and segment != "*":
                raise InvalidInput("a wildcard must be a whole segment of an event filter", param=param)
            if segment != "*" and not SEGMENT.fullmatch(segment):
                raise InvalidInput(
                    "an event filter is an event type in which whole segments may be *",
                    param=param,
                    hint="for example order.*, order.** or *",
                )
        return cls(checked, tuple(fixed), is_open)

    def matches(self, event_type: str) -> bool:
        """True if the subscription wants events of this type."""
        fixed = self._segments
        if not fixed:
            return True
        segments = event_type.split(".")
        if len(segments) <= len(fixed) if self._open else len(segments) != len(fixed):
            return False
        return all(want in ("*", have) for want, have in zip(fixed, segments, strict=False))

    def __str__(self) -> str:
        return self.text


def matches_any(filters: Iterable[EventFilter], event_type: str) -> bool:
    """True if any of the filters wants the event type."""
    return any(item.matches(event_type) for item in filters)
