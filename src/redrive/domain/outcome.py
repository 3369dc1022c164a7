"""What one attempt showed, in closed words.

An :class:`Outcome` is the only thing an executed attempt hands back. Its ``category`` is a bounded
reason: never a response body, never an exception's message.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class OutcomeKind(enum.StrEnum):
    """What an attempt showed. The last two are the engine's alone and cost no attempt."""

    DELIVERED = "delivered"
    NO_OP = "no_op"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    """The effect may have happened."""
    INTERRUPTED = "interrupted"
    """Shutdown before the attempt started."""
    DEFERRED = "deferred"
    """Never started: limiter, pause, breaker, or a fault of our own."""


class Category(enum.StrEnum):
    """The bounded reason of an outcome. Stored and exported by value: values are never renamed."""

    # Nothing went wrong.
    OK = "ok"
    NOTHING_TO_DO = "nothing_to_do"
    RECEIVER_DUPLICATE = "receiver_duplicate"
    CONFIRMED = "confirmed"
    # Certainly unsent.
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    PROXY = "proxy"
    TIMEOUT_UNSENT = "timeout_unsent"
    FORBIDDEN_ADDRESS = "forbidden_address"
    # Sent, and no full response head came back.
    TIMEOUT_SENT = "timeout_sent"
    CONNECTION_LOST = "connection_lost"
    BAD_RESPONSE = "bad_response"
    # A response came back.
    HTTP_GATEWAY = "http_gateway"
    """502 or 504: a gateway answered; behind it the effect may have happened."""
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    HTTP_4XX = "http_4xx"
    HTTP_3XX = "http_3xx"
    GONE = "gone"
    # The work itself.
    PAYLOAD_INVALID = "payload_invalid"
    POLICY = "policy"
    REJECTED = "rejected"
    """The handler or its target refused the work for good."""
    HANDLER_ERROR = "handler_error"
    HANDLER_TIMEOUT = "handler_timeout"
    RETRY_REQUESTED = "retry_requested"
    CONFIRM_FAILED = "confirm_failed"
    UNDECODABLE = "undecodable"
    UNKNOWN_HANDLER = "unknown_handler"
    # The engine.
    WORKER_LOST = "worker_lost"
    SHUTDOWN = "shutdown"
    DESTINATION_DISABLED = "destination_disabled"
    OWN_FAULT = "own_fault"
    """Ours, not the target's: no file descriptors, a secret that cannot be read, our own proxy down."""
    AGE = "age"
    """The age budget ran out before an attempt could say more."""


class Flag(enum.IntFlag):
    """Facts about an attempt beside its outcome."""

    NONE = 0
    LATE = 1
    """Written after its lease had expired."""
    RECEIVER_DUPLICATE = 2
    """The receiver said that it had seen this delivery before."""
    RESPONSE_TRUNCATED = 4
    """The response body ended early or went over the cap; the head was whole, so the outcome stands."""
    CONFIRMED = 8
    """A confirm function found the effect in place; nothing was sent."""
    CLOSED_IN_HANDLER = 16
    """Effect and outcome committed in one transaction (``ctx.close_in``)."""
    RULED_OUT = 32
    """A confirm function found that no earlier attempt took effect; then the attempt itself ran."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt showed.

    ``retry_after_us`` is what the target asked for, in microseconds, unclamped. ``status`` is an HTTP
    status where there was one. ``excerpt`` is a small redacted text, only where an operator turned it on.
    """

    kind: OutcomeKind
    category: Category
    status: int | None = None
    retry_after_us: int | None = None
    flags: Flag = Flag.NONE
    excerpt: str | None = None
    disable_destination: bool = False
    """410 Gone: the destination asked never to be called again; its deliveries are held."""


DELIVERED = Outcome(OutcomeKind.DELIVERED, Category.OK)
NO_OP = Outcome(OutcomeKind.NO_OP, Category.NOTHING_TO_DO)
WORKER_LOST = Outcome(OutcomeKind.UNKNOWN, Category.WORKER_LOST)
INTERRUPTED = Outcome(OutcomeKind.INTERRUPTED, Category.SHUTDOWN)
CONFIRMED = Outcome(OutcomeKind.DELIVERED, Category.CONFIRMED, flags=Flag.CONFIRMED)
"""A confirm function says that the effect is there."""
CONFIRM_FAILED = Outcome(OutcomeKind.RETRYABLE, Category.CONFIRM_FAILED)
"""A confirm function cannot tell, raised, or ran over its time."""
OWN_FAULT = Outcome(OutcomeKind.DEFERRED, Category.OWN_FAULT)
UNCHARGED = (OutcomeKind.INTERRUPTED, OutcomeKind.DEFERRED)
"""What may only be said of an attempt that never started."""
_FAILURES = (OutcomeKind.RETRYABLE, OutcomeKind.PERMANENT, OutcomeKind.UNKNOWN)


def ruled_out(outcome: Outcome) -> Outcome:
    """The outcome of an attempt that ran after a confirm function had said that no earlier one took effect."""
    return replace(outcome, flags=outcome.flags | Flag.RULED_OUT) if outcome.kind in _FAILURES else outcome
