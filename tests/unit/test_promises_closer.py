"""Closing in batches: one forms while the one before it is in flight."""

from __future__ import annotations

import asyncio
from typing import Any

from redrive.domain.delivery import Closed, Closing
from redrive.domain.outcome import DELIVERED
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
