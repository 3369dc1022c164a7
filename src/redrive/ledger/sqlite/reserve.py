"""Reserving and keeping leases: charge, fence and lease in one statement. Each function is one transaction's body."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from redrive.domain.delivery import Lease
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx

PRIORITIES: Final = (0, 1, 2, 3)


def reserve(tx: RawTx, now: int, worker: int, routes: Sequence[int], limit: int, lease_us: int) -> list[Lease]:
    """Charge and lease up to ``limit`` due deliveries: routes in the order given, then priority, then age."""
    while True:
        try:
            rows = _due(tx, now, routes, limit)
            break
        except sqlite3.DataError:  # together their payloads are more than one value can hold
            if limit == 1:
                raise
            limit = (limit + 1) // 2
    if not rows:
        return []
    until = now + lease_us
    seqs = json.dumps([row[0] for row, _ in rows])
    charged = tx.run(sql("reserve_update"), (seqs, now, worker, until))
    if charged != len(rows):
        raise AssertionError(f"reserved {charged} of {len(rows)} selected deliveries")
    return [_lease(row, payload, now, until) for row, payload in rows]


def _due(tx: RawTx, now: int, routes: Sequence[int], limit: int) -> list[tuple[list[Any], bytes]]:
    """Rows of ``reserve_select``, each with its payload."""
    found: list[tuple[list[Any], bytes]] = []
    select = sql("reserve_select")
    tx.conn.text_factory = bytes
    try:
        for route in routes:
            for priority in PRIORITIES:
                table, payloads = tx.rows(select, (route, priority, now, limit - len(found)))[0]
                end = 0
                # A damaged row must not keep the others from being claimed: text that is not UTF-8 is read as well as
                # it can be, and a payload that is gone is handed over empty, so that its hash sends it to quarantine.
                for row in json.loads(table.decode("utf-8", "replace")):
                    begin, end = end, end + (row[15] or 0)
                    found.append((row, (payloads or b"")[begin:end]))
                if len(found) == limit:
                    return found
    finally:
        tx.conn.text_factory = str
    return found


def _lease(row: list[Any], payload: bytes, started_at: int, until: int) -> Lease:
    """One row of ``reserve_select`` as the lease it has become."""
    blob = bytes.fromhex
    return Lease._make(
        (
            row[0],
            blob(row[1]),
            *row[2:11],
            started_at,
            until,
            *row[11:15],
            payload,
            blob(row[16]),
            row[17],
            blob(row[18]) or None,
            row[19],
            row[20],
        )
    )


def extend(tx: RawTx, now: int, worker: int, leases: Iterable[tuple[int, int]], lease_us: int) -> set[int]:
    """Extend leases that are still held; returns the seqs that are not."""
    statement, until = sql("extend"), now + lease_us
    lost = {seq for seq, fence in leases if not tx.rows(statement, (seq, fence, worker, until))}
    tx.run(sql("worker_seen"), (worker, now))
    return lost
