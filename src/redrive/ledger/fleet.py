"""What whoever runs a fleet asks: is anything due, who works, and which decoders are still needed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from redrive.domain.identity import route_of
from redrive.domain.ports import LIVE_US
from redrive.ledger.plans import steady
from redrive.ledger.records import Count, Record
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

DUE_CAP: Final = 100_000
"""Due work is counted up to here."""
ENVELOPE_CAP: Final = 10_000
"""Live deliveries of one route, and held and leased ones in all, are looked at up to here."""
_ROUTES: Final = 1000
_WORKERS: Final = 1000
SILENT_US: Final = 90_000_000
"""A worker beats every 30 seconds at the latest: three beats that did not come."""
LISTED_US: Final = 86_400_000_000
"""A worker that never said that it stopped is listed for a day after it was last seen."""

Route = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DueView(Record):
    """How much a fleet has to do now, for whoever decides how many workers there should be."""

    now_at: int
    """Ledger time."""
    due: Count
    """Waiting, not held, and their time has come, whichever handler they are for."""
    oldest_due_us: int | None
    """How long the oldest of them has been due."""
    next_due_at: int | None
    """When the next delivery that is not due yet will be; None when none waits for a later time."""
    next_due_us: int | None
    """How long until then."""
    leased: int
    """Being attempted, by any worker."""
    expired_leases: int
    """Of those, the ones whose worker is gone: any worker ends them, and needs to run for that."""


@dataclass(frozen=True, slots=True)
class ListedWorker(Record):
    """A worker that has not said that it stopped."""

    name: str
    host: str
    pid: int
    version: str
    routes: tuple[Route, ...]
    """(handler, envelope version) that it executes."""
    started_at: int
    seen_at: int
    leases: int
    stale: bool
    """Not seen for two minutes: it is gone, or cannot reach the ledger. What it holds is another worker's soon."""
    silent: bool
    """Not seen for 90 seconds, three of the longest intervals between heartbeats."""


@dataclass(frozen=True, slots=True)
class EnvelopeView(Record):
    """Live deliveries of one handler, envelope version and policy version; or a decoder that none needs now."""

    handler: str
    envelope_version: int
    policy_version: str | None
    """None: a live worker decodes this envelope version, and no live delivery has it."""
    waiting: Count
    leased: Count
    held: Count
    """Waiting for somebody to release them."""
    oldest_at: int | None
    """When the oldest of those counted was accepted."""
    workers: int
    """How many live workers decode it; 0: nobody does."""
    worker_versions: tuple[str, ...]
    """The releases of redrive that those run."""


@dataclass(frozen=True, slots=True)
class Envelopes(Record):
    """Which decoders live deliveries need."""

    now_at: int
    items: tuple[EnvelopeView, ...]
    complete: bool
    """Every live delivery's (handler, envelope version) is listed. False: there were more of them, more
    held flows or more leased deliveries than are looked at."""


def due(tx: Tx, now: int) -> DueView:
    """What is due, in one statement. Its cost grows with what is due, up to the cap, and not with what waits."""
    steady(tx)
    now = _now(tx, now)
    count, oldest, following, leased, expired = tx.rows(sql("due"), (now, DUE_CAP + 1, _ROUTES))[0]
    return DueView(
        now_at=now,
        due=Count(min(count, DUE_CAP), count > DUE_CAP),
        oldest_due_us=None if oldest is None else now - oldest,
        next_due_at=following,
        next_due_us=None if following is None else following - now,
        leased=leased,
        expired_leases=expired,
    )


def due_elsewhere(tx: Tx, now: int, routes: Iterable[Route]) -> Count:
    """How much is due that none of ``routes`` covers."""
    steady(tx)
    now = _now(tx, now)
    own = {route_of(*route) for route in routes}
    total = 0
    for (route,) in tx.rows(sql("routes_waiting"), (_ROUTES,)):
        for priority in range(4) if route not in own else ():
            if total > DUE_CAP:
                break
            total += tx.rows(sql("route_due"), (route, priority, now, DUE_CAP + 1 - total))[0][0]
    return Count(min(total, DUE_CAP), total > DUE_CAP)


def workers(tx: Tx, now: int) -> tuple[ListedWorker, ...]:
    """Who works, newest first; those gone without a word are marked, and listed for a day."""
    steady(tx)
    now = _now(tx, now)
    return tuple(
        ListedWorker(
            name,
            host,
            pid,
            version,
            _routes(text),
            started_at,
            seen_at,
            leases,
            stale=seen_at < now - LIVE_US,
            silent=seen_at < now - SILENT_US,
        )
        for name, host, pid, version, text, started_at, seen_at, leases in tx.rows(
            sql("workers_list"), (now - LISTED_US, _WORKERS)
        )
    )


def envelopes(tx: Tx, now: int) -> Envelopes:
    """Live deliveries by envelope version, handler and policy version, with who decodes them, in one statement.

    Counts with ``more`` are lower bounds: of a route with very many deliveries the first in the order of claims are
    looked at, and a policy that only others have is not listed. The routes are, all of them, while ``complete``.
    """
    steady(tx)
    now = _now(tx, now)
    decoded: dict[Route, list[str]] = {}
    for _, _, _, version, text, _, _ in tx.rows(sql("workers_seen"), (now - LIVE_US, _WORKERS)):
        for route in _routes(text):
            decoded.setdefault(route, []).append(version)
    rows = tx.rows(sql("envelopes"), (ENVELOPE_CAP + 1, _ROUTES + 1))
    waiting: dict[Route, int] = {}
    for handler, envelope, _, count, *_ in rows:
        waiting[handler, envelope] = waiting.get((handler, envelope), 0) + count
    cut_held, cut_leased = (bool(rows) and rows[0][index] > ENVELOPE_CAP for index in (7, 8))
    items = [
        _envelope(row, decoded, waiting[row[0], row[1]] > ENVELOPE_CAP, cut_held=cut_held, cut_leased=cut_leased)
        for row in rows
    ]
    none = Count(0)
    for route in sorted(decoded.keys() - waiting.keys()):
        items.append(EnvelopeView(*route, None, none, none, none, None, *_who(decoded[route])))
    items.sort(key=lambda item: (item.handler, item.envelope_version, item.policy_version or ""))
    cut_flows = cut_held and rows[0][9] > _ROUTES
    return Envelopes(now, tuple(items), not (cut_flows or cut_leased) and len(waiting) <= _ROUTES)


def _envelope(
    row: tuple[Any, ...], decoded: dict[Route, list[str]], cut: bool, *, cut_held: bool, cut_leased: bool
) -> EnvelopeView:
    handler, envelope, policy, waiting, held, leased, oldest, *_ = row
    return EnvelopeView(
        handler,
        envelope,
        str(policy),
        Count(min(waiting, ENVELOPE_CAP), cut),
        Count(min(leased, ENVELOPE_CAP), cut_leased),
        Count(min(held, ENVELOPE_CAP), cut_held),
        oldest,
        *_who(decoded.get((handler, envelope), [])),
    )


def _who(versions: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    found = list(versions)
    return len(found), tuple(sorted(set(found)))


def _routes(text: str) -> tuple[Route, ...]:
    return tuple((handler, envelope) for handler, envelope in json.loads(text))


def _now(tx: Tx, estimate: int) -> int:
    """Ledger time: the server's, or, of a file, at least the time that is stored in it."""
    stored: int = tx.rows(sql("clock_read"))[0][0]
    return max(estimate, stored) if tx.dialect == "sqlite" else stored
