"""The ledger in one look, at any size: live work by its indexes, finished work by capped counts."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from redrive.domain.delivery import Disposition
from redrive.domain.ports import LIVE_US
from redrive.ledger.plans import steady
from redrive.ledger.records import Count, DisabledDestination, StatusView, Unclaimed, WorkerView
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

CAP: Final = 100_000
"""Finished work, and each list of work that waits, is counted up to here."""
LIVE_CAP: Final = 1_000_000
"""Live work is counted up to here: an index's own entries, at some 50 million a second."""
_MANY: Final = 1000
_DISABLED: Final = 100


def status(tx: Tx, now: int, host_now: int | None = None) -> StatusView:
    """What the ledger holds and who works on it.

    ``now`` is an estimate of ledger time and ``host_now`` this host's clock (read here when None), in microseconds
    UTC. A count with ``more`` is a lower bound. A few milliseconds where little is live; it never grows with the
    number of finished deliveries.
    """
    steady(tx, sort=False)
    environment, created_at, stored, schema, accepted = tx.rows(sql("status_ledger"), (CAP + 1,))[0]
    now = max(now, stored) if tx.dialect == "sqlite" else stored
    host = host_now if host_now is not None else time.time_ns() // 1000
    leases, oldest_lease, expired = tx.rows(sql("leases"), (now,))[0]
    workers = _workers(tx, now)
    due, oldest_due, unclaimed = _waiting(tx, now, workers)
    dispositions, held = _dispositions(tx, leases)
    duplicates, conflicts, rows = tx.rows(sql("repeats_total"), (CAP + 1,))[0]
    return StatusView(
        environment=environment,
        schema_version=schema,
        created_at=created_at,
        now_at=now,
        skew_us=stored - host if stored > host else 0,
        accepted=_capped(accepted),
        dispositions=dispositions,
        due=due,
        oldest_due_us=None if oldest_due is None else now - oldest_due,
        oldest_lease_us=None if oldest_lease is None else now - oldest_lease,
        expired_leases=expired,
        held=held,
        disabled=tuple(DisabledDestination(*row) for row in tx.rows(sql("destinations_disabled"), (_DISABLED,))),
        dead_letters_open=_capped(tx.rows(sql("count_dead_letters"), (CAP + 1,))[0][0]),
        workers=workers,
        unclaimed=unclaimed,
        rejections=dict(_pairs(tx.rows(sql("rejections")))),
        duplicates=Count(duplicates, rows > CAP),
        conflicts=Count(conflicts, rows > CAP),
        receiver_duplicates=tx.rows(sql("receiver_duplicates_total"))[0][0],
        wal_defect=_defect(tx),
    )


def _defect(tx: Tx) -> str | None:
    if tx.dialect != "sqlite":
        return None
    from redrive.ledger.sqlite.connect import wal_defect

    return wal_defect()


def _capped(counted: int) -> Count:
    return Count(min(counted, CAP), counted > CAP)


def _pairs(rows: list[tuple[Any, ...]]) -> list[tuple[str, int]]:
    return [(code, count) for code, count in rows]


def _workers(tx: Tx, now: int) -> tuple[WorkerView, ...]:
    return tuple(
        WorkerView(
            name,
            host,
            pid,
            version,
            tuple((handler, envelope) for handler, envelope in json.loads(routes)),
            started_at,
            seen_at,
        )
        for name, host, pid, version, routes, started_at, seen_at in tx.rows(
            sql("workers_seen"), (now - LIVE_US, _MANY)
        )
    )


def _waiting(tx: Tx, now: int, workers: tuple[WorkerView, ...]) -> tuple[Count, int | None, tuple[Unclaimed, ...]]:
    """Due work, since when the oldest is due, and what waits for a worker that is not there. Held work is neither."""
    known = {route for worker in workers for route in worker.routes}
    total, oldest = 0, None
    unclaimed = []
    for (route,) in tx.rows(sql("routes_waiting"), (_MANY,)):
        for priority in range(4):
            cap = CAP + 1 - min(total, CAP)
            count, since = tx.rows(sql("route_due"), (route, priority, now, cap))[0]
            total += count
            if since is not None:
                oldest = since if oldest is None else min(oldest, since)
        handler, version = tx.rows(sql("route_name"), (route,))[0]
        if (handler, version) not in known:
            waiting = tx.rows(sql("route_waiting"), (route, CAP + 1))[0][0]
            unclaimed.append(Unclaimed(handler, version, _capped(waiting)))
    unclaimed.sort(key=lambda item: (item.handler, item.envelope_version))
    return _capped(total), oldest, tuple(unclaimed)


def _dispositions(tx: Tx, leased: int) -> tuple[dict[str, Count], Count]:
    """Counts by disposition, and of held deliveries.

    Live ones and dead ones have indexes. The rest is counted among the newest deliveries: exactly, while there
    are no more than the cap; else as a lower bound.
    """
    newest: dict[int, int] = {}
    held = looked = 0
    for disposition, is_held, count in tx.rows(sql("count_newest"), (CAP + 1,)):
        newest[disposition] = newest.get(disposition, 0) + count
        looked += count
        if is_held and disposition == Disposition.WAITING:
            held += count
    whole = looked <= CAP
    counts = {d.label: Count(newest.get(d, 0), not whole) for d in Disposition}
    if whole:
        return counts, Count(held)
    live = tx.rows(sql("count_live"), (LIVE_CAP + 1,))[0][0]
    ready = tx.rows(sql("count_ready"), (LIVE_CAP + 1,))[0][0]
    counts[Disposition.WAITING.label] = Count(min(live, LIVE_CAP) - leased, live > LIVE_CAP)
    counts[Disposition.LEASED.label] = Count(leased)
    _, letters, generations = tx.rows(sql("count_dead_letters"), (LIVE_CAP + 1,))[0]
    if letters <= LIVE_CAP:
        # Every generation but the first was opened over one dead letter; the others' deliveries are dead.
        counts[Disposition.DEAD.label] = Count(letters - generations)
    exact = live <= LIVE_CAP and ready <= LIVE_CAP
    return counts, Count(live - leased - ready) if exact else Count(held, True)
