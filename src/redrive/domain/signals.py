"""What a handler raises to say how its work ended, other than by returning."""

from __future__ import annotations

from datetime import timedelta

from redrive.domain.outcome import Category
from redrive.domain.values import duration_us
from redrive.errors import InvalidInput

_ALLOWED = frozenset(
    {
        Category.PAYLOAD_INVALID,
        Category.POLICY,
        Category.REJECTED,
        Category.GONE,
        Category.HANDLER_ERROR,
        Category.HTTP_4XX,
        Category.HTTP_5XX,
        Category.HTTP_429,
    }
)
_HINT = "one of " + ", ".join(sorted(_ALLOWED))


class Signal(Exception):
    """Base of what a handler raises on purpose."""


class Retry(Signal):
    """Try again within the budget, not before ``after`` if it is given: seconds, a timedelta or text (``"5m"``).

    At most ten years. Raises :class:`~redrive.errors.InvalidInput` for anything else.
    """

    def __init__(self, after: float | timedelta | str | None = None) -> None:
        super().__init__("retry")
        self.after_us = None if after is None else duration_us(after, "after")


class Permanent(Signal):
    """Waiting cannot help: straight to a dead letter with this category.

    One of ``payload_invalid``, ``policy``, ``rejected`` (the default), ``gone``, ``handler_error``,
    ``http_4xx``, ``http_5xx``, ``http_429``.
    """

    def __init__(self, category: Category | str = Category.REJECTED) -> None:
        super().__init__("permanent")
        try:
            self.category = Category(category)
        except ValueError:
            self.category = Category.REJECTED
            # Not echoed: what is passed by mistake is a message or a response body.
            raise InvalidInput("Permanent takes a category, not a text", param="category", hint=_HINT) from None
        if self.category not in _ALLOWED:
            raise InvalidInput(f"a handler cannot claim the category {self.category}", param="category", hint=_HINT)


class Unknown(Signal):
    """The effect may have happened: follow the policy's ``unknown`` rule."""


class NoOp(Signal):
    """There was nothing to do. Ends the delivery as ``no_op``."""
