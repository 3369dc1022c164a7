"""How long is waited before the next try, and the reaper that waits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from redrive.domain.ports import Reaped
from redrive.errors import LedgerUnavailable
from redrive.ledger.postgres import transact
from redrive.worker import reaper
from redrive.worker.closer import Closer
from redrive.worker.reaper import Reaper


class Down:
    """A ledger whose server is away until it is back."""

    def __init__(self) -> None:
        self.down = True

    async def overdue(self) -> bool:
        if self.down:
            raise LedgerUnavailable("away")
        return False


def made(ledger: Any, interval_s: float = 1.0) -> Reaper:
    return Reaper(ledger, [("job", 1)], Closer(ledger, 1, lambda: None), lambda: None, interval_s, lambda: 0.5)


def test_a_transaction_waits_longer_for_each_failure_up_to_a_cap_and_never_as_long_as_another() -> None:
    longest = [max(transact.backoff(failures) for _ in range(200)) for failures in range(1, 12)]
    shortest = [min(transact.backoff(failures) for _ in range(200)) for failures in range(1, 12)]
    assert shortest[0] < longest[0] < shortest[3] < longest[4]
    assert longest[-1] < 1.5
    assert shortest[-1] >= 0.5
    assert all(least * 1.5 < most for least, most in zip(shortest, longest, strict=True)), "they are spread"


def test_a_worker_waits_longer_for_each_failure_up_to_about_five_seconds() -> None:
    waits = [reaper.backoff(failures, 0.5) for failures in range(1, 15)]
    assert waits[:4] == sorted(set(waits[:4]))
    assert waits[-1] == max(waits) == 5.0
    assert (reaper.backoff(14, 0.0), reaper.backoff(14, 1.0)) == (2.5, 7.5)


def test_the_reaper_backs_off_and_says_so_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ledger = Down()
        one = made(ledger)
        assert one.pause() == 1.0
        pauses = []
        for _ in range(200):
            await one.look()
            pauses.append(one.pause())
        assert pauses[0] == 1.0, "never sooner than when it works"
        assert pauses == sorted(pauses)
        assert pauses[-1] == 5.0
        ledger.down = False
        await one.look()
        await one.look()
        assert one.pause() == 1.0

    with caplog.at_level(logging.WARNING, "redrive.worker"):
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records]
    failed = [f"reaping failed ({times} in a row): away" for times in (1, 10, 100, 200)]
    assert said == [*failed, "reaping works again, after 200 failures"]


def test_the_reaper_goes_on_while_there_is_more() -> None:
    class Full:
        left = 3

        async def overdue(self) -> bool:
            return self.left > 0

        async def reap(self, limit: int, u: list[float], routes: Any) -> Reaped:
            assert (limit, len(u), routes) == (reaper.REAP_BATCH, reaper.REAP_BATCH, [("job", 1)])
            self.left -= 1
            return Reaped(0, more=self.left > 0)

    ledger = Full()
    asyncio.run(made(ledger).look())
    assert ledger.left == 0
