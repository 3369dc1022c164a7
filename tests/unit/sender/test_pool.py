"""Slots: granted in order, never lost, whatever happens in the same turn of the loop."""

from __future__ import annotations

import asyncio
import socket

import pytest

from redrive.webhooks.sender import Endpoint, IPAddress
from redrive.webhooks.sender.pool import SLOT, Pools
from redrive.webhooks.sender.protocol import Connection


def allow(address: IPAddress) -> str | None:
    return None


A = Endpoint("http", "a.example", 80, guard=allow)
B = Endpoint("http", "b.example", 80, guard=allow)


def make(total: int, each: int) -> Pools:
    return Pools(asyncio.get_running_loop(), max_connections=total, max_per_endpoint=each, idle_s=3.0, max_age_s=9.0)


def test_a_slot_that_is_granted_and_cancelled_in_one_turn_is_not_lost():
    async def main() -> None:
        pools = make(1, 1)
        assert pools.take(pools.pool(A), fresh=False) is SLOT
        waiting = asyncio.create_task(pools.wait(pools.pool(A), fresh=False, until=pools.loop.time() + 60))
        await asyncio.sleep(0)
        pools.free(pools.pool(A))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert pools.taken == 0
        assert pools.take(pools.pool(A), fresh=False) is SLOT

    asyncio.run(main())


def test_a_connection_that_is_handed_over_and_cancelled_in_one_turn_is_idle_again():
    async def main() -> None:
        pools = make(1, 1)
        pool = pools.pool(A)
        assert pools.take(pool, fresh=False) is SLOT
        ends = socket.socketpair()
        connection = Connection(pools, pool, ends[0], secure=False)
        connection.has_slot = True
        connection.max_age_at = pools.loop.time() + 60
        waiting = asyncio.create_task(pools.wait(pool, fresh=False, until=pools.loop.time() + 60))
        await asyncio.sleep(0)
        pools.release(connection)
        assert pool.idle == []
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert pool.idle == [connection]
        assert pools.taken == 1
        connection.abort()
        assert pools.taken == 0
        for end in ends:
            end.close()

    asyncio.run(main())


def test_waiters_of_an_endpoint_are_served_in_order_and_nobody_overtakes():
    async def main() -> None:
        pools = make(9, 1)
        assert pools.take(pools.pool(A), fresh=False) is SLOT
        order: list[int] = []

        async def wait(number: int) -> None:
            assert await pools.wait(pools.pool(A), fresh=False, until=pools.loop.time() + 60) is SLOT
            order.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        for _ in tasks:
            assert pools.take(pools.pool(A), fresh=False) is None
            pools.free(pools.pool(A))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3, 4]
        assert pools.take(pools.pool(B), fresh=False) is SLOT  # another endpoint never had to wait

    asyncio.run(main())


def test_a_free_slot_goes_to_the_endpoint_that_has_fewest():
    async def main() -> None:
        pools = make(2, 2)
        assert [pools.take(pools.pool(A), fresh=False) for _ in range(2)] == [SLOT, SLOT]
        until = pools.loop.time() + 60
        first = asyncio.create_task(pools.wait(pools.pool(A), fresh=False, until=until))
        await asyncio.sleep(0)
        second = asyncio.create_task(pools.wait(pools.pool(B), fresh=False, until=until))
        await asyncio.sleep(0)
        pools.free(pools.pool(A))
        await asyncio.sleep(0)
        assert second.done()
        assert not first.done()
        pools.free(pools.pool(A))
        assert await first is SLOT
        assert pools.taken == 2

    asyncio.run(main())


def test_who_waits_too_long_gets_nothing_and_leaves_nothing():
    async def main() -> None:
        pools = make(1, 1)
        assert pools.take(pools.pool(A), fresh=False) is SLOT
        assert await pools.wait(pools.pool(B), fresh=False, until=pools.loop.time() + 0.01) is None
        assert pools.taken == 1
        pools.free(pools.pool(A))
        assert pools.taken == 0
        assert pools.take(pools.pool(B), fresh=False) is SLOT

    asyncio.run(main())
