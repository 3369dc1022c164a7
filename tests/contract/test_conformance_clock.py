"""Ledger time: never backwards, the same for every process, and ledger-side (contract 3 and 2.4)."""

from __future__ import annotations

from tests.contract.bench import Bench
from tests.contract.harness import DELIVERED, LEASE, RETRYABLE, START

from redrive.domain.delivery import Disposition
from redrive.domain.policy import HOUR, SECOND


def test_ledger_time_does_not_go_back_with_a_hosts_clock(bench: Bench) -> None:
    made = bench.enqueue(delay_us=SECOND)
    bench.clock.skew = -HOUR
    bench.enqueue("other")
    assert bench.now() == START
    bench.advance(SECOND)
    assert bench.now() == START + SECOND, "it goes on by the monotonic clock"
    assert {lease.seq for lease in bench.reserve()} >= {made.seq}
    bench.clock.skew = 0
    assert bench.now() == START + SECOND


def test_a_host_that_is_an_hour_behind_changes_nothing(bench: Bench) -> None:
    """O-22: what is due, leased or expired is judged by ledger time, whoever asks."""
    behind = bench.host(skew=-HOUR)
    retried, fresh = bench.enqueue("retried"), bench.enqueue("fresh")
    lease, other = behind.reserve()
    assert (lease.started_at, lease.leased_until) == (START, START + LEASE)
    behind.close(lease, RETRYABLE)
    assert bench.state(retried.seq).available_at == START + 4 * SECOND
    bench.advance(4 * SECOND - 1)
    assert behind.reserve() == bench.reserve() == []
    bench.advance(1)
    assert len(behind.reserve()) == 1
    bench.advance_to(START + LEASE - 1)
    assert behind.reap().expired_leases == 0
    bench.advance(1)
    assert behind.reap().expired_leases == 1
    assert bench.standing(fresh.seq) is Disposition.WAITING
    assert other.seq == fresh.seq


def test_a_lease_is_not_alive_again_on_a_host_that_is_behind(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(LEASE)
    bench.enqueue("later")
    behind = bench.host(skew=-HOUR)
    assert behind.now() == START + LEASE
    assert behind.reap().expired_leases == 1
    assert bench.close(lease, RETRYABLE).value == "evidence"
    assert bench.standing(made.seq) is Disposition.WAITING


def test_a_process_that_only_reads_sees_a_lease_run_out(bench: Bench) -> None:
    """Behind the ledger's time, it goes on from what is stored: the process that was ahead may have died."""
    reader = bench.host()
    bench.clock.skew = HOUR
    bench.enqueue()
    lease = bench.lease()
    assert lease.leased_until == START + HOUR + LEASE
    assert not reader.overdue()
    bench.advance(LEASE - 1)
    assert not reader.overdue()
    bench.advance(1)
    assert reader.overdue()
    assert reader.now() == START + HOUR + LEASE


def test_times_on_the_ledger_never_decrease_under_a_jumping_clock(bench: Bench) -> None:
    made = bench.enqueue()
    hosts = [bench, bench.host(skew=-HOUR), bench.host(skew=-SECOND)]
    for skew in (0, -HOUR, HOUR, -2 * HOUR, 5 * SECOND, 0):
        for host in hosts:
            host.clock.skew = skew
            bench.advance(SECOND)
            before = bench.now()
            host.enqueue()
            assert host.now() >= before
    seen = [repeat.at for repeat in bench.repeats(made.seq)[0]]
    assert seen == sorted(seen)
    assert len(seen) == 8


def test_a_second_process_that_starts_with_an_old_clock_delivers_the_same_times(bench: Bench) -> None:
    bench.enqueue()
    bench.advance(HOUR)
    bench.close(bench.lease(), DELIVERED)
    late_born = bench.host(skew=-3 * HOUR)
    made = late_born.enqueue("new")
    assert bench.state(made.seq).available_at == START + HOUR
