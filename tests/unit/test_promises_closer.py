"""Closing in batches: one forms while the one before it is in flight."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from redrive.domain.delivery import Closed, Closing
from redrive.domain.identity import to_text
from redrive.domain.outcome import DELIVERED, Category, Outcome, OutcomeKind
from redrive.errors import LedgerBusy
from redrive.worker.closer import Closer


def closing(seq: int) -> Closing:
    return Closing(seq, 1, 0, 1, 0, 0, DELIVERED, 0.0, 1)


class Slow:
    """A ledger that commits when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.commits: asyncio.Queue[None] = asyncio.Queue()

    async def close_attempts(self, worker: int, closings: list[Closing]) -> list[Closed]:
        self.batches.append([one.seq for one in closings])
        await self.commits.get()
        return [Closed.APPLIED] * len(closings)


def test_a_batch_forms_while_the_one_before_it_is_in_flight() -> None:
    async def main() -> None:
        ledger: Any = Slow()
        closer = Closer(ledger, 1, lambda: None)
        running = asyncio.create_task(closer.run())
        closer.add(closing(0))
        while not ledger.batches:
            await asyncio.sleep(0)
        for seq in range(1, 8):
            closer.add(closing(seq))
            await asyncio.sleep(0)
        assert ledger.batches == [[0]], "the first is in flight, and nothing overtakes it"
        assert closer.backlog == 8, "none of them is durable"
        ledger.commits.put_nowait(None)
        ledger.commits.put_nowait(None)
        async with asyncio.timeout(10):
            await closer.settled()
        assert ledger.batches == [[0], [1, 2, 3, 4, 5, 6, 7]]
        assert (closer.backlog, closer.closed) == (0, 8)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


class Quick:
    """A ledger that commits at once."""

    async def close_attempts(self, worker: int, closings: list[Closing]) -> list[Closed]:
        return [Closed.APPLIED] * len(closings)


def told(closings: list[Closing], caplog: pytest.LogCaptureFixture) -> list[str]:
    async def main() -> None:
        ledger: Any = Quick()
        closer = Closer(ledger, 1, lambda: None)
        for one in closings:
            closer.add(one)
        running = asyncio.create_task(closer.run())
        async with asyncio.timeout(10):
            await closer.settled()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    return [record.getMessage() for record in caplog.records if record.name == "redrive.worker.attempts"]


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("redrive"), "propagate", True)
    return caplog


def test_attempts_that_did_not_simply_succeed_are_told_up_to_a_bound(logs: pytest.LogCaptureFixture) -> None:
    busy = Outcome(OutcomeKind.RETRYABLE, Category.HTTP_5XX, status=503)
    failed = [closing(seq)._replace(outcome=busy, delivery_id=bytes(16)) for seq in range(25)]
    retried = closing(100)._replace(attempt=2, delivery_id=bytes(16))
    with logs.at_level(logging.INFO, "redrive.worker.attempts"):
        lines = told([closing(99), retried, *failed], logs)
    name = to_text("dlv", bytes(16))
    assert lines[0] == f"{name}: attempt 2 ended delivered: ok"
    assert lines[1:20] == [f"{name}: attempt 1 ended retryable: http_5xx, 503"] * 19
    assert lines[20:] == ["and 6 more that did not simply succeed", "27 attempts ended: 2 delivered, 25 retryable"]


def test_nothing_is_looked_at_while_nobody_listens(
    logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Closer, "_tell", lambda self, batch: pytest.fail("it cost something"))
    with logs.at_level(logging.WARNING, "redrive.worker.attempts"):
        assert told([closing(1)._replace(attempt=2)], logs) == []


class Refusing:
    """A ledger that is busy."""

    async def close_attempts(self, worker: int, closings: list[Closing]) -> list[Closed]:
        raise LedgerBusy("busy")


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_a_fleet_does_not_come_back_in_one_instant(monkeypatch: pytest.MonkeyPatch, random: float) -> None:
    waits: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 9:
            enough.set()
            await asyncio.Event().wait()

    async def main() -> None:
        ledger: Any = Refusing()
        closer = Closer(ledger, 1, lambda: None, lambda: random)
        running = asyncio.create_task(closer.run())
        closer.add(closing(1))
        async with asyncio.timeout(10):
            await enough.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    monkeypatch.setattr("redrive.worker.closer.asyncio.sleep", sleep)
    asyncio.run(main())
    whole = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert waits == pytest.approx([seconds * (0.5 + random) for seconds in whole])
