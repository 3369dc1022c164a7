"""A damaged row is quarantined, and stops nobody else's work."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.webhooks.settings import DestinationSettings


def test_an_event_that_is_gone_sends_its_delivery_to_quarantine_and_the_rest_is_done(tmp_path: Path) -> None:
    with Redrive(f"sqlite:///{tmp_path}/ledger.db") as app:
        app.init()
        done: list[Any] = []

        @app.handler("job")
        async def job(ctx: Any, payload: Any) -> None:
            done.append(payload)

        app.destinations.add("orders", DestinationSettings("https://hooks.example.com/orders"))
        (damaged,) = app.publish("order.paid", {"n": 1}, event_id="e").deliveries
        app.enqueue("job", {"n": 2}, key="k")
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as conn:
            conn.execute("DROP TRIGGER event_no_delete")
            conn.execute("DELETE FROM event")
            conn.commit()
        asyncio.run(app.work(until_idle=True))
        assert done == [{"n": 2}]
        view = app.operations.show(damaged)
        assert (view.disposition, view.last_category, view.attempt) == ("dead", "undecodable", 1)
