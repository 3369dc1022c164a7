"""The hot path: claims, closes and heartbeats, each on a connection and a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redrive.domain import identity
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.ports import Extended
from redrive.failpoint import hit
from redrive.ledger.close import PolicyOf
from redrive.ledger.leftover import Leftovers
from redrive.ledger.postgres import close as closing
from redrive.ledger.postgres.connect import PostgresUrl, state_of
from redrive.ledger.postgres.lane import Lane
from redrive.ledger.postgres.statements import array
from redrive.ledger.postgres.tx import PostgresTx, PsycopgTx
from redrive.ledger.statements import sql
from redrive.ledger.tx import Row

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
Settings = Callable[[], tuple[str] | None]
LOST_CLAIM_S: Final = 6.0
"""Seconds for which a claim may go on at the server after its client is gone: it waits 5 s for a lock at most."""
LOOK_AT_ALL_S: Final = 1.0
LOOKS: Final = 5
LOOK_AGAIN_S: Final = 0.04
"""An outcome whose delivery somebody holds is tried so often, so far apart, before the worker is told to keep it."""
LOCK_NOT_AVAILABLE: Final = "55P03"
BACKLOG: Final = 32
"""Rows of a full claim from which on there is a backlog."""
_route = lru_cache(maxsize=4096)(identity.route_of)


def hot(
    conn: psycopg.Connection[Any],
    schema: str,
    settings: tuple[str] | None,
    point: str,
    work: Callable[[PostgresTx], T],
    *,
    framed: bool = False,
) -> T:
    """Run ``work`` as one transaction: a bare statement, unless ``settings`` or ``framed`` put more around it."""
    tx = PsycopgTx(conn, schema)
    if settings is None and not framed:
        return work(tx)
    with conn.transaction():
        if settings is not None:
            tx.rows(sql("transaction_settings"), settings)
        result = work(tx)
        hit(point + ".before_commit")
    hit(point + ".after_commit")
    return result


class HotPath:
    """What workers of this process ask again and again. See ``domain.ports.WorkLedger`` for the methods."""

    def __init__(
        self, url: PostgresUrl, settings: Settings, policy_of: PolicyOf, observe: Callable[[int], None]
    ) -> None:
        self._url = url
        self._settings = settings
        self._policy_of = policy_of
        self._observe = observe
        self._claims = Lane(url, "claim")
        self._closes = Lane(url, "close")
        self._beats = Lane(url, "beat")
        self._seen: dict[int, int] = {}
        """The latest ``started_at`` that each of this process's workers was given."""
        self._unsure: set[int] = set()
        """Workers whose last claim may have been committed without their knowing."""
        self._claimers: dict[int, int] = {}
        """The server process that was last sent each one's claim."""
        self._lows: dict[int, int] = {}
        self._looked_at_all = float("-inf")
        self._turn = 0
        self._leftovers = Leftovers()

    def close(self) -> None:
        """Finish what is queued and close the connections."""
        for lane in (self._claims, self._closes, self._beats):
            lane.close()

    def _hot(
        self, conn: psycopg.Connection[Any], point: str, work: Callable[[PostgresTx], T], *, framed: bool = False
    ) -> T:
        return hot(conn, self._url.schema, self._settings(), point, work, framed=framed)

    async def reserve(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        if limit <= 0 or not routes:
            return []
        self._turn += 1
        first = self._turn % len(routes)
        # No handler's backlog may keep the others from ever being claimed: each claim starts at another one.
        numbers = [_route(*route) for route in (*routes[first:], *routes[:first])]

        def claim(conn: psycopg.Connection[Any], again: bool) -> list[Lease]:
            unsure = again or worker in self._unsure
            since = self._seen.get(worker, 0)
            if unsure:
                self._await_lost_claim(conn, worker)
            self._unsure.add(worker)
            self._claimers[worker] = conn.info.backend_pid
            params = (worker, array(numbers), array(self._bounds(numbers)), limit, lease_us, since, unsure)
            rows = self._hot(conn, "reserve", lambda tx: tx.rows(sql("reserve"), params))
            self._unsure.discard(worker)
            self._remember(rows, limit)
            if rows:
                self._seen[worker] = max(since, *(row[11] for row in rows)) if unsure else rows[-1][11]
                self._observe(rows[-1][11])
            return [Lease._make(row[:-1]) for row in rows]

        return await self._leftovers.wait(worker, self._claims.start(claim))

    async def leftover(self, worker: int) -> list[Lease]:
        return await self._leftovers.take(worker)

    def _bounds(self, routes: Sequence[int]) -> list[int]:
        """From which ``available_at`` on to look: in the middle of a backlog, from where the last claim ended.

        What is older and was not there then (a producer's late commit, a released hold) is found by the next look at
        all, a second later at most.
        """
        now = time.monotonic()
        if now - self._looked_at_all >= LOOK_AT_ALL_S:
            self._lows.clear()
        if not self._lows:
            self._looked_at_all = now
        return [self._lows.get(route, 0) for route in routes]

    def _remember(self, rows: Sequence[Row], limit: int) -> None:
        if len(rows) < max(limit, BACKLOG):
            self._lows.clear()
            return
        # The last row is the youngest of its route and priority, and whatever of its route goes first went before it.
        last = rows[-1]
        self._lows[_route(last[2], last[15])] = last[-1]

    def _await_lost_claim(self, conn: psycopg.Connection[Any], worker: int) -> None:
        """The server may still be at the claim whose connection was lost: what it commits later, nobody would know of.

        Behind a pooler nobody can tell which process that is; then such leases run out and are charged.
        """
        pid = self._claimers.get(worker)
        end = time.monotonic() + LOST_CLAIM_S
        while pid is not None and not self._url.pooled and time.monotonic() < end:
            if not PsycopgTx(conn, self._url.schema).rows(sql("claim_running"), (pid,))[0][0]:
                return
            time.sleep(0.02)

    async def close_attempts(self, worker: int, closings: Sequence[Closing]) -> list[Closed]:
        def work(conn: psycopg.Connection[Any], again: bool) -> list[Closed]:
            done: set[tuple[int, int]] = set()
            for group, members in closing.successes(closings).items():
                done |= self._close_group(conn, worker, group, members)
            if len(done) == len(closings):
                return [Closed.APPLIED] * len(closings)
            results = []
            for c in closings:
                # One that is there twice is the second time one of the rest.
                results.append(Closed.APPLIED if (c.seq, c.fence) in done else Closed.LATER)
                done.discard((c.seq, c.fence))
            for number in range(LOOKS):
                left = [index for index, closed in enumerate(results) if closed is Closed.LATER]
                if not left:
                    break
                if number:  # somebody's transaction holds them, mostly for a moment only
                    time.sleep(LOOK_AGAIN_S)
                rest = self._close_rest(conn, worker, [closings[index] for index in left])
                for index, closed in zip(left, rest, strict=True):
                    results[index] = closed
            return results

        return await self._closes.run(work)

    def _close_group(
        self, conn: psycopg.Connection[Any], worker: int, group: closing.Group, members: Sequence[Closing]
    ) -> set[tuple[int, int]]:
        try:
            return self._hot(conn, "close", lambda tx: closing.close_group(tx, worker, group, members))
        except Exception as exc:
            if state_of(exc) != LOCK_NOT_AVAILABLE:
                raise
            return set()

    def _close_rest(self, conn: psycopg.Connection[Any], worker: int, rest: Sequence[Closing]) -> list[Closed]:
        def work(tx: PostgresTx) -> list[Closed]:
            now: int = tx.rows(sql("clock_read"))[0][0]
            return closing.close_rest(tx, now, worker, rest, self._policy_of)

        if self._url.pooled:
            return self._hot(conn, "close", work, framed=True)
        with conn.pipeline():
            return self._hot(conn, "close", work, framed=True)

    async def extend(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> set[int]:
        return (await self._beats.run(self._extending(worker, leases, lease_us))).lost

    def extend_sync(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> Extended:
        return self._beats.call(self._extending(worker, leases, lease_us))

    def _extending(
        self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int
    ) -> Callable[[psycopg.Connection[Any], bool], Extended]:
        ordered = sorted(leases)
        params = (worker, array(seq for seq, _ in ordered), array(fence for _, fence in ordered), lease_us)

        def work(conn: psycopg.Connection[Any], again: bool) -> Extended:
            ((lost, untouched),) = self._hot(conn, "extend", lambda tx: tx.rows(sql("extend_leases"), params))
            return Extended(set(lost), frozenset(untouched))

        return work
