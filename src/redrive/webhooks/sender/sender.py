"""The sender: one request in, one observation out."""

from __future__ import annotations

import asyncio

from redrive.webhooks.observation import Failure, Fault, Observation, Phase
from redrive.webhooks.sender.dial import Dialler
from redrive.webhooks.sender.pool import Pools, Slot
from redrive.webhooks.sender.protocol import Connection
from redrive.webhooks.sender.request import Prepared, Request
from redrive.webhooks.sender.resolver import Resolver, SystemResolver

_POOL_TIMEOUT = Failure(Phase.CONNECT, Fault.TIMEOUT, sent=False, detail="pool")
_CLOSED = Failure(Phase.CONNECT, Fault.OURS, sent=False, detail="closed")


class Sender:
    """Sends requests over HTTP/1.1, each at most once.

    One call of :meth:`send` is at most one request on the wire: nothing is followed, retried, decompressed
    or taken from the environment. It belongs to the event loop that it is first used on.

    ``max_connections`` and ``max_per_endpoint`` bound the open connections. ``idle_s`` is how long one is
    kept for reuse (seconds; receivers commonly close theirs after 5), ``max_age_s`` how long one is used at
    all, so that the name is resolved and judged again.
    """

    def __init__(
        self,
        *,
        max_connections: int = 1000,
        max_per_endpoint: int = 100,
        idle_s: float = 3.0,
        max_age_s: float = 300.0,
        resolver: Resolver | None = None,
    ) -> None:
        if max_connections < 1 or max_per_endpoint < 1:
            raise ValueError("a sender needs at least one connection")
        self._limits = (max_connections, max_per_endpoint, idle_s, max_age_s)
        self._dialler = Dialler(resolver or SystemResolver())
        self._pools: Pools | None = None
        self._closed = False

    @property
    def connections(self) -> int:
        """Slots in use: connections open, idle ones included, or being dialled."""
        return 0 if self._pools is None else self._pools.taken

    async def send(self, request: Request | Prepared) -> Observation:
        """Send ``request`` and say what was seen.

        Never raises but CancelledError, and what ``request.on_send`` raises: either closes the connection and frees
        its slot. Every deadline of
        ``request.timeouts`` holds, whatever the receiver does.
        """
        pools = self._pools
        if pools is None:
            pools = self._pools = self._make_pools()
        now = pools.loop.time()
        total_at = now + request.timeouts.total
        # The common case costs no await before the write: a warm connection that is certainly silent.
        pool = pools.pool(request.endpoint)
        connection = None
        if pool.idle and not request.fresh and not self._closed:
            connection = pools.take_idle(pool)
            if connection.readable():
                connection = await self._recheck(connection)
        if connection is None:
            made = await self._acquire(pools, request, total_at)
            if isinstance(made, Failure):
                return made
            connection = made
            now = pools.loop.time()
        waiter = None
        try:
            waiter = connection.exchange(request, now, total_at)
            return await waiter
        except BaseException:
            # Where it has been settled meanwhile, the connection may already serve somebody else.
            if waiter is None or connection.waiter is waiter:
                connection.abort()
            raise

    async def close(self, grace_s: float = 1.0) -> None:
        """Close every connection. Exchanges under way end as lost, later ones are refused, unsent."""
        self._closed = True
        if self._pools is not None:
            await self._pools.close(grace_s)

    # -- the slow path ---------------------------------------------------------------------------

    async def _acquire(self, pools: Pools, request: Request | Prepared, total_at: float) -> Connection | Failure:
        """A connection that is fit for a request at this very moment, or why there is none."""
        while not self._closed:
            pool = pools.pool(request.endpoint)
            got = pools.take(pool, fresh=request.fresh)
            if got is None:
                got = await pools.wait(pool, fresh=request.fresh, until=total_at)
            if got is None:
                return _CLOSED if self._closed else _POOL_TIMEOUT
            if isinstance(got, Slot):
                return await self._dial(pools, request, total_at)
            found = await self._recheck(got) if got.readable() else got
            if found is not None:
                return found
        return _CLOSED

    async def _recheck(self, connection: Connection) -> Connection | None:
        """``connection`` once the loop has read what waits for it, or None if it is not to be used.

        On a clear idle connection, anything that can be read is an end or an offence. Under TLS it may
        be a session ticket, and on a new one it says why: there the loop gets its turn to read it first.
        """
        if connection.secure or connection.served == 0:
            try:
                for _ in range(3):
                    await asyncio.sleep(0)
                    if not connection.readable():
                        return connection
            except BaseException:
                connection.abort()
                raise
        connection.abort()
        return None

    async def _dial(self, pools: Pools, request: Request | Prepared, total_at: float) -> Connection | Failure:
        pool = pools.pool(request.endpoint)
        try:
            made = await self._dialler.dial(pools, pool, request.timeouts, total_at)
        except BaseException:
            pools.free(pool)
            raise
        if isinstance(made, Failure):
            pools.free(pool)
            return made
        if made.broken is None:
            made.has_slot = True
        else:
            pools.free(pool)
        if self._closed:
            made.close()
            return _CLOSED
        if not made.readable() or await self._recheck(made) is not None:
            return made
        phase = Phase.TLS if made.secure else Phase.CONNECT
        if made.broken == "unsolicited":
            return Failure(phase, Fault.MALFORMED, sent=False, detail="unsolicited")
        return Failure(phase, made.fault, sent=False, detail=made.broken or "closed")

    def _make_pools(self) -> Pools:
        connections, per_endpoint, idle_s, max_age_s = self._limits
        return Pools(
            asyncio.get_running_loop(),
            max_connections=connections,
            max_per_endpoint=per_endpoint,
            idle_s=idle_s,
            max_age_s=max_age_s,
        )
