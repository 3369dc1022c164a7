"""Keep-alive pools, one per endpoint, under one bound on all connections and one clock.

A *slot* is the right to hold one connection, from before it is dialled until it is closed. Slots are
bounded per endpoint and in all. Who must wait for one is served first come, first served within an
endpoint; between endpoints the one that holds the fewest goes first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from redrive.webhooks.sender.protocol import NEVER, Connection
from redrive.webhooks.sender.request import Endpoint

TICK_S: Final = 0.02
"""How often deadlines are looked at. One scan of all connections is cheaper than a timer per exchange."""


class Slot:
    """The right to dial one connection."""

    __slots__ = ()


SLOT: Final = Slot()
_Waiter = asyncio.Future[Connection | Slot | None]


class Pool:
    """The connections of one endpoint. ``idle`` is a stack: the warmest goes first."""

    __slots__ = ("endpoint", "idle", "taken", "waiters")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.idle: list[Connection] = []
        self.taken = 0
        self.waiters: OrderedDict[_Waiter, bool] = OrderedDict()


class Pools:
    """Every pool of one sender, and the clock that ends exchanges and idle connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        max_connections: int,
        max_per_endpoint: int,
        idle_s: float,
        max_age_s: float,
    ) -> None:
        self.loop = loop
        self.taken = 0
        self._max = max_connections
        self._max_per_endpoint = max_per_endpoint
        self._idle_s = idle_s
        self._max_age_s = max_age_s
        self._pools: dict[Endpoint, Pool] = {}
        self._waiting: OrderedDict[Pool, None] = OrderedDict()
        self._open: set[Connection] = set()
        self._clock: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None

    # -- taking ----------------------------------------------------------------------------------

    def pool(self, endpoint: Endpoint) -> Pool:
        pool = self._pools.get(endpoint)
        if pool is None:
            pool = self._pools[endpoint] = Pool(endpoint)
        return pool

    def take(self, pool: Pool, *, fresh: bool) -> Connection | Slot | None:
        """An idle connection (never where ``fresh``), a slot, or None if the caller must wait."""
        if not fresh and pool.idle:
            return self.take_idle(pool)
        if self._closing is not None:
            return None
        if pool.waiters:
            return None  # no overtaking
        if pool.taken >= self._max_per_endpoint and not self._evict(pool):
            return None
        if self.taken >= self._max and not self._evict(None):
            return None
        self._grant(pool)
        return SLOT

    def take_idle(self, pool: Pool) -> Connection:
        """The warmest idle connection. There must be one."""
        connection = pool.idle.pop()
        connection.deadline = NEVER
        return connection

    async def wait(self, pool: Pool, *, fresh: bool, until: float) -> Connection | Slot | None:
        """What :meth:`take` gives, as soon as it can be had; None at loop time ``until``."""
        waiter: _Waiter = self.loop.create_future()
        pool.waiters[waiter] = fresh
        self._waiting[pool] = None
        timer = self.loop.call_at(until, _give_up, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # granted and cancelled in the same turn
                granted = waiter.result()
                if isinstance(granted, Connection):
                    self.release(granted)
                elif granted is not None:
                    self.free(pool)
            raise
        finally:
            timer.cancel()
            self._forget_waiter(pool, waiter)

    def _grant(self, pool: Pool) -> None:
        pool.taken += 1
        self.taken += 1

    def _evict(self, pool: Pool | None) -> bool:
        """Close the idle connection nearest its end (of ``pool``, or of all) to have its slot."""
        pools = self._pools.values() if pool is None else (pool,)
        idle = [connection for one in pools for connection in one.idle]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.deadline).close()
        return True

    # -- giving back -----------------------------------------------------------------------------

    def release(self, connection: Connection) -> None:
        """An exchange is over and its connection can carry another."""
        now = self.loop.time()
        if connection.broken is not None or self._closing is not None or now >= connection.max_age_at:
            connection.close()
            return
        pool = connection.pool
        if self._waiting:
            if self.taken >= self._max and self._is_unfair(pool):
                connection.close()  # its slot goes to the endpoint that has the fewest
                return
            while pool.waiters:
                waiter, fresh = next(iter(pool.waiters.items()))
                self._forget_waiter(pool, waiter)
                if waiter.done():
                    continue
                if fresh:
                    self._grant(pool)
                    connection.close()
                    waiter.set_result(SLOT)
                else:
                    waiter.set_result(connection)
                return
            if self.taken >= self._max and any(one.taken < self._max_per_endpoint for one in self._waiting):
                connection.close()
                return
        connection.deadline = now + self._idle_s
        pool.idle.append(connection)

    def _is_unfair(self, pool: Pool) -> bool:
        return any(other.taken + 1 < pool.taken for other in self._waiting if other is not pool)

    def discard(self, connection: Connection) -> None:
        """A connection is closed or closing: its slot is free."""
        connection.has_slot = False
        pool = connection.pool
        if connection in pool.idle:
            pool.idle.remove(connection)
        self.free(pool)

    def free(self, pool: Pool) -> None:
        """Give a slot back and serve who waits."""
        pool.taken -= 1
        self.taken -= 1
        while self._waiting and self.taken < self._max:
            ready = [one for one in self._waiting if one.taken < self._max_per_endpoint]
            if not ready:
                break
            chosen = min(ready, key=lambda one: one.taken)
            waiter = next(iter(chosen.waiters))
            if not waiter.done():
                self._grant(chosen)
                waiter.set_result(SLOT)
            self._forget_waiter(chosen, waiter)
        self._forget_pool(pool)

    def _forget_waiter(self, pool: Pool, waiter: _Waiter) -> None:
        pool.waiters.pop(waiter, None)
        if not pool.waiters:
            self._waiting.pop(pool, None)
            self._forget_pool(pool)

    def _forget_pool(self, pool: Pool) -> None:
        if not pool.taken and not pool.waiters and self._pools.get(pool.endpoint) is pool:
            del self._pools[pool.endpoint]

    # -- connections and the clock ---------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        connection.max_age_at = self.loop.time() + self._max_age_s
        self._open.add(connection)
        if self._clock is None:
            self._clock = self.loop.call_later(TICK_S, self._tick)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._closing is not None and not self._open and not self._closing.done():
            self._closing.set_result(None)

    def _tick(self) -> None:
        now = self.loop.time()
        for connection in [one for one in self._open if one.deadline <= now]:
            connection.expire()
        self._clock = self.loop.call_later(TICK_S, self._tick) if self._open else None

    async def close(self, grace_s: float) -> None:
        """Close every connection: idle ones politely, busy ones at once. Waiters get nothing."""
        if self._closing is None:
            self._closing = self.loop.create_future()
        for pool in list(self._waiting):
            for waiter in list(pool.waiters):
                _give_up(waiter)
        for connection in list(self._open):
            if connection.waiter is None:
                connection.close()
            else:
                connection.shut()
        if self._open:
            await asyncio.wait([self._closing], timeout=grace_s)
        for connection in list(self._open):
            connection.abort()
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def _give_up(waiter: _Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)
