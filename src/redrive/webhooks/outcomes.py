"""The outcome table: what an observed exchange means.

The default, which a destination can override:

======================================================  ============================================
seen                                                    outcome
======================================================  ============================================
2xx (or what the destination acknowledges with)         delivered, decided on the head alone
other 2xx, where the destination names its own          unknown ``bad_response``
3xx                                                     permanent ``http_3xx``; never followed
408, 409, 423, 425                                      retryable ``http_4xx``
429                                                     retryable ``http_429``
410                                                     permanent ``gone``; the destination is disabled
other 4xx                                               permanent ``http_4xx``
502, 504                                                unknown ``http_gateway``
other 5xx                                               retryable ``http_5xx``
1xx as a final status, below 100, above 599             unknown ``bad_response``
unsent: forbidden address                               permanent ``forbidden_address``
unsent: unacceptable certificate                        permanent ``tls`` (retryable by choice)
unsent: deadline                                        retryable ``timeout_unsent``
unsent: name, connection, proxy, other TLS failure      retryable ``dns connect proxy tls``
unsent: our own fault, no free connection of ours       deferred ``own_fault``; not charged
sent: deadline                                          unknown ``timeout_sent``
sent: malformed response                                unknown ``bad_response``
sent: anything else                                     unknown ``connection_lost``
======================================================  ============================================

A certificate that is expired or for another name does not mend itself between two attempts, so it goes to
quarantine at once, where a person sees it; a handshake that failed otherwise (reset, protocol alert) is
retried within the budget. An answer can prove that the effect did not happen; a failure after sending
cannot, so it is never retryable, and a failure before it is never unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.retry_after import parse_retry_after
from redrive.errors import InvalidInput
from redrive.webhooks.observation import NO_SLOT, Failure, Fault, Observation, Phase, Response

DUPLICATE_HEADER = "webhook-duplicate"
"""A receiver that has seen the delivery ID before may answer with this header, value ``true``."""

MAX_EXCERPT = 2000
"""Longest excerpt of a response body, in characters."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_STATUS = re.compile(r"([0-9]{3})(?:-([0-9]{3}))?|([2-5])[xX]{2}")
_OVERRIDES = (
    OutcomeKind.DELIVERED,
    OutcomeKind.RETRYABLE,
    OutcomeKind.PERMANENT,
    OutcomeKind.UNKNOWN,
)
_RETRYABLE_4XX = frozenset((408, 409, 423, 425, 429))
_UNSENT = {
    Phase.DNS: Category.DNS,
    Phase.CONNECT: Category.CONNECT,
    Phase.PROXY: Category.PROXY,
    Phase.TLS: Category.TLS,
}
_NO_MEANING = (OutcomeKind.UNKNOWN, Category.BAD_RESPONSE)


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """One destination's outcome table. Built once; :meth:`classify` is total and pure.

    ``acknowledge`` are the statuses that mean delivered, as inclusive ranges. ``duplicate_status`` means
    delivered too, and that the receiver had seen the delivery before. ``overrides`` maps a status to
    ``delivered``, ``retryable``, ``permanent`` or ``unknown`` and wins over everything, 410's disabling of
    the destination included. ``duplicate_header`` replaces :data:`DUPLICATE_HEADER`.
    ``certificate`` is what an unacceptable certificate means: ``permanent`` or ``retryable``.
    Raises :class:`InvalidInput`; 1xx statuses cannot be final and cannot be named.
    """

    acknowledge: tuple[tuple[int, int], ...] = ((200, 299),)
    duplicate_status: int | None = None
    overrides: Mapping[int, OutcomeKind] = field(default_factory=dict)
    duplicate_header: str = DUPLICATE_HEADER
    certificate: OutcomeKind = OutcomeKind.PERMANENT
    _rows: tuple[Outcome, ...] = field(init=False, repr=False, compare=False)
    _duplicate_name: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.acknowledge:
            raise InvalidInput("at least one status must acknowledge", param="acknowledge")
        for low, high in self.acknowledge:
            _check_status(low, "acknowledge")
            _check_status(high, "acknowledge")
            if low > high:
                raise InvalidInput("a status range begins after its end", param="acknowledge")
        if self.duplicate_status is not None:
            _check_status(self.duplicate_status, "duplicate_status")
        overrides: dict[int, OutcomeKind] = {}
        for status, kind in self.overrides.items():
            _check_status(status, "overrides")
            if kind not in _OVERRIDES:
                raise InvalidInput("a status means delivered, retryable, permanent or unknown", param="overrides")
            overrides[status] = OutcomeKind(kind)
        if overrides.get(self.duplicate_status or 0, OutcomeKind.DELIVERED) != OutcomeKind.DELIVERED:
            raise InvalidInput("the duplicate status is overridden by something else", param="overrides")
        if not isinstance(self.duplicate_header, str) or not _TOKEN.fullmatch(self.duplicate_header):
            raise InvalidInput("the duplicate header is not a header name", param="duplicate_header")
        if self.certificate not in (OutcomeKind.PERMANENT, OutcomeKind.RETRYABLE):
            raise InvalidInput("a bad certificate is permanent or retryable", param="certificate")
        object.__setattr__(self, "overrides", overrides)
        object.__setattr__(self, "certificate", OutcomeKind(self.certificate))
        object.__setattr__(self, "_duplicate_name", self.duplicate_header.lower().encode("ascii"))
        object.__setattr__(self, "_rows", tuple(self._row(status) for status in range(600)))

    @classmethod
    def build(
        cls,
        acknowledge: str | Iterable[int | str] = "2xx",
        duplicate_status: int | None = None,
        overrides: Mapping[int | str, str] | None = None,
        duplicate_header: str = DUPLICATE_HEADER,
        certificate: str = "permanent",
    ) -> OutcomeTable:
        """From configuration. ``acknowledge`` is ``"2xx"``, ``"200-204,409"``, ``[200, "202-204"]``; the
        keys of ``overrides`` are a status, ``"404"``, ``"500-503"`` or ``"4xx"``, narrower ones winning.
        Raises :class:`InvalidInput`.
        """
        items = acknowledge.split(",") if isinstance(acknowledge, str) else acknowledge
        spans = [(_span(key, "overrides"), kind) for key, kind in (overrides or {}).items()]
        spans.sort(key=lambda item: item[0][0] - item[0][1])
        named: dict[int, OutcomeKind] = {}
        for (low, high), kind in spans:
            named.update(dict.fromkeys(range(low, high + 1), _kind(kind, "overrides")))
        return cls(
            tuple(_span(item, "acknowledge") for item in items),
            duplicate_status,
            named,
            duplicate_header,
            _kind(certificate, "certificate"),
        )

    def classify(self, observation: Observation, now_us: int, excerpt_cap: int = 0) -> Outcome:
        """What the exchange showed. Never raises.

        ``now_us`` is Unix time in microseconds, for a Retry-After that names a date. Retry-After is read for
        every retryable or unknown answer. ``excerpt_cap`` is how many characters of the body of an answer
        that did not deliver are kept, after redaction; 0 keeps none.
        """
        if isinstance(observation, Failure):
            return self._failure(observation)
        status = observation.status
        row = self._rows[status] if 0 <= status < 600 else Outcome(*_NO_MEANING, status=status)
        said: bytes | None = None
        duplicate = False
        for name, value in observation.headers:
            if name == b"retry-after":
                # A repeated field is a list (RFC 9110, 5.3), and Retry-After is none: malformed.
                said = value if said is None else said + b", " + value
            elif name == self._duplicate_name:
                duplicate = duplicate or value.strip().lower() == b"true"
        if row.kind is OutcomeKind.DELIVERED:
            if not duplicate and not observation.truncated:
                return row
            return _replace(row, observation, duplicate=duplicate or row.flags != Flag.NONE)
        wait = parse_retry_after(said, now_us) if row.kind is not OutcomeKind.PERMANENT else None
        text = excerpt(observation.body, excerpt_cap) if excerpt_cap > 0 else None
        return _replace(row, observation, duplicate=duplicate, retry_after_us=wait, text=text)

    def _row(self, status: int) -> Outcome:
        kind, category = self._meaning(status)
        flags = Flag.NONE
        if status == self.duplicate_status:
            category, flags = Category.RECEIVER_DUPLICATE, Flag.RECEIVER_DUPLICATE
        gone = status == 410 and kind is OutcomeKind.PERMANENT and status not in self.overrides
        return Outcome(kind, category, status=status, flags=flags, disable_destination=gone)

    def _meaning(self, status: int) -> tuple[OutcomeKind, Category]:
        override = self.overrides.get(status)
        if override is OutcomeKind.DELIVERED or (override is None and self._acknowledges(status)):
            return OutcomeKind.DELIVERED, Category.OK
        default = _default(status)
        return default if override is None else (override, default[1])

    def _acknowledges(self, status: int) -> bool:
        if status == self.duplicate_status:
            return True
        return any(low <= status <= high for low, high in self.acknowledge)

    def _failure(self, failure: Failure) -> Outcome:
        fault = failure.fault
        if failure.sent:
            category = Category.CONNECTION_LOST
            if fault is Fault.TIMEOUT:
                category = Category.TIMEOUT_SENT
            elif fault is Fault.MALFORMED:
                category = Category.BAD_RESPONSE
            return Outcome(OutcomeKind.UNKNOWN, category)
        if fault is Fault.FORBIDDEN or failure.phase is Phase.GUARD:
            return Outcome(OutcomeKind.PERMANENT, Category.FORBIDDEN_ADDRESS)
        if fault is Fault.OURS or failure.detail == NO_SLOT:
            return Outcome(OutcomeKind.DEFERRED, Category.OWN_FAULT)
        if fault is Fault.CERTIFICATE:
            return Outcome(self.certificate, Category.TLS)
        if fault is Fault.TIMEOUT:
            return Outcome(OutcomeKind.RETRYABLE, Category.TIMEOUT_UNSENT)
        # SEND and HEAD without a write: a connection that was closed before its first byte.
        return Outcome(OutcomeKind.RETRYABLE, _UNSENT.get(failure.phase, Category.CONNECT))


def _default(status: int) -> tuple[OutcomeKind, Category]:
    if status in (502, 504):
        return OutcomeKind.UNKNOWN, Category.HTTP_GATEWAY
    if status == 429:
        return OutcomeKind.RETRYABLE, Category.HTTP_429
    if status == 410:
        return OutcomeKind.PERMANENT, Category.GONE
    if 300 <= status < 400:
        return OutcomeKind.PERMANENT, Category.HTTP_3XX
    if 400 <= status < 500:
        kind = OutcomeKind.RETRYABLE if status in _RETRYABLE_4XX else OutcomeKind.PERMANENT
        return kind, Category.HTTP_4XX
    if 500 <= status < 600:
        return OutcomeKind.RETRYABLE, Category.HTTP_5XX
    # A 2xx that this destination does not acknowledge with, or no final status at all.
    return _NO_MEANING


def _replace(
    row: Outcome,
    response: Response,
    *,
    duplicate: bool,
    retry_after_us: int | None = None,
    text: str | None = None,
) -> Outcome:
    flags = row.flags
    category = row.category
    if duplicate:
        flags |= Flag.RECEIVER_DUPLICATE
        if row.kind is OutcomeKind.DELIVERED:
            category = Category.RECEIVER_DUPLICATE
    if response.truncated:
        flags |= Flag.RESPONSE_TRUNCATED
    return Outcome(row.kind, category, response.status, retry_after_us, flags, text, row.disable_destination)


def _check_status(status: object, param: str) -> None:
    if type(status) is not int or not 200 <= status <= 599:
        raise InvalidInput("a status must be 200 to 599", param=param)


def _span(item: int | str, param: str) -> tuple[int, int]:
    if isinstance(item, int):
        _check_status(item, param)
        return item, item
    match = _STATUS.fullmatch(item.strip()) if isinstance(item, str) else None
    if match is None:
        raise InvalidInput("a status is written 204, 200-204 or 2xx", param=param, hint="several are joined by commas")
    low, high, hundred = match.groups()
    if hundred is not None:
        return int(hundred) * 100, int(hundred) * 100 + 99
    first, last = int(low), int(high or low)
    _check_status(first, param)
    _check_status(last, param)
    if first > last:
        raise InvalidInput("a status range begins after its end", param=param)
    return first, last


def _kind(text: str, param: str) -> OutcomeKind:
    try:
        return OutcomeKind(text)
    except ValueError:
        raise InvalidInput("an outcome is delivered, retryable, permanent or unknown", param=param) from None


# --- excerpts ---------------------------------------------------------------------------------------

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_SECRETS = (
    re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE),
    re.compile(
        r"((?:token|secret|passw[a-z]{0,4}|passphrase|api[_-]?key|access[_-]?key|authorization|signature|cookie"
        r"|session|credentials?|jwt|pin|otp)[A-Za-z0-9_-]{0,40}[\"']?\s{0,4}[:=]\s{0,4})(?:\"[^\"]*+\"?|'[^']*+'?|[^\s,;&}\]]+)",
        re.IGNORECASE,
    ),
    re.compile(r"()whs(?:ec|k)_[A-Za-z0-9+/=]*"),
    re.compile(r"()[^\s@\"'<>:,;]{1,64}@[A-Za-z0-9.-]{1,255}"),
    re.compile(r"()[A-Za-z0-9+/_=-]{24,}(?:\.[A-Za-z0-9+/_=-]+)*"),
    re.compile(r"()[0-9](?:[ -]?[0-9]){8,}"),
)


def excerpt(body: bytes, cap: int) -> str | None:
    """The beginning of a response body for a person to read, at most ``cap`` characters, or None if empty.

    Controls become spaces. Credentials by name or shape, e-mail addresses, long opaque runs and long numbers
    become ``***``. It is a help and no guarantee: that is why it is off unless an operator turns it on.
    """
    cap = min(cap, MAX_EXCERPT)
    # Redacted before it is cut, so that no rule misses what the cut would halve.
    limit = 4 * cap + 1024
    text = _CONTROLS.sub(" ", body[:limit].decode("utf-8", "replace"))
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    if len(body) > limit:
        # What the first cut halved is too short to be recognised, and may be within the cap by now.
        text = text[:-64]
    text = text.strip()[:cap]
    return text or None
