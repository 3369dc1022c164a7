"""Many at once: coroutines of one process, and several processes at one ledger."""

from __future__ import annotations

import asyncio

from tests.contract.bench import Bench
from tests.contract.harness import DELIVERED, JOB, LEASE, work

from redrive.domain.delivery import Closed, Decided, Disposition, Lease


def test_fifty_coroutines_each_get_their_own_answer(bench: Bench) -> None:
    batches = bench.together(
        *(bench.ledger.accept([work(f"k{n}"), work("shared")], "library", "p", False) for n in range(50))
    )
    assert [own.decided for own, _ in batches] == [Decided.CREATED] * 50
    assert [shared.decided for _, shared in batches].count(Decided.CREATED) == 1
    assert [own.delivery_id for own, _ in batches] == [work(f"k{n}").delivery_id for n in range(50)]


def test_an_answer_is_durable_when_it_arrives(bench: Bench) -> None:
    """Another process sees each write as soon as the writer has its answer."""
    other = bench.host()

    async def write_and_look(number: int) -> None:
        (made,) = await bench.ledger.accept([work(f"k{number}")], "library", "p", False)
        assert (await other.ledger.state(made.seq)).disposition is Disposition.WAITING
        (lease,) = await bench.ledger.reserve(bench.worker, [JOB], 1, LEASE)
        assert (await other.ledger.state(lease.seq)).fence == lease.fence
        await bench.ledger.close_attempts(bench.worker, [bench.closing(lease, DELIVERED)])
        assert (await other.ledger.state(lease.seq)).disposition is Disposition.DELIVERED

    bench.together(*(write_and_look(number) for number in range(12)))


def test_a_wait_that_is_given_up_undoes_nothing(bench: Bench) -> None:
    async def give_up() -> list[Lease]:
        doing = asyncio.ensure_future(bench.ledger.accept([work("k")], "library", "p", False))
        await asyncio.sleep(0)
        doing.cancel()
        await asyncio.wait([doing])
        # Nobody waits for it any more, so that nothing says when it is done.
        end = asyncio.get_running_loop().time() + 10
        while not (leases := await bench.ledger.reserve(bench.worker, [JOB], 1, LEASE)):
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.002)
        return leases

    (lease,) = bench.run(give_up())
    assert lease.delivery_id == work("k").delivery_id


def test_many_workers_of_three_processes_execute_each_delivery_once(bench: Bench) -> None:
    total = 120
    hosts = [bench, bench.host(), bench.host()]
    executed: list[bytes] = []

    async def worker(host: Bench, size: int) -> None:
        while leases := await host.ledger.reserve(host.worker, [JOB], size, LEASE):
            executed.extend(lease.delivery_id for lease in leases)
            closings = [host.closing(lease, DELIVERED) for lease in leases]
            assert set(await host.ledger.close_attempts(host.worker, closings)) == {Closed.APPLIED}

    bench.enqueue_all([work(f"k{n}") for n in range(total)])
    bench.together(*(worker(host, size) for host in hosts for size in (1, 3, 8)))
    assert len(executed) == len(set(executed)) == total
    assert bench.rows("attempt") == total
