"""What is refused is counted on the ledger, by whichever write comes next."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import FAST, make

from redrive import Conflict, Context, InvalidInput, Redrive
from redrive.errors import LedgerBusy, PayloadInvalid, PayloadTooLarge
from redrive.webhooks.publish import Event


async def nothing(context: Context, payload: Any) -> None:
    pass


def counting(folder: Path, **options: Any) -> Redrive:
    app = make(folder, **options)
    app.handler("job", policy=FAST)(nothing)
    return app


def test_refused_enqueues_are_counted_on_the_ledger_by_reason(tmp_path: Path) -> None:
    with counting(tmp_path, max_payload_bytes=100) as app:
        for _ in range(2):
            with pytest.raises(PayloadInvalid):
                app.enqueue("job", math.inf, key=1)
        with pytest.raises(PayloadTooLarge):
            app.enqueue("job", "x" * 200, key=1)
        with pytest.raises(InvalidInput):
            app.enqueue("nobody", key=1)
        app.enqueue("job", key=1)
        assert app.operations.status().rejections == {
            "payload_invalid": 2,
            "payload_too_large": 1,
            "unknown_handler": 1,
        }
        with pytest.raises(InvalidInput):
            app.publish("not a type", {}, event_id=1)
    with counting(tmp_path) as again:  # closing wrote what was left
        assert again.operations.status().rejections["invalid_input"] == 1


def test_refused_publishes_are_counted_with_the_next_write_of_either_kind(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        for _ in range(3):
            with pytest.raises(InvalidInput):
                app.publish("not a type", {}, event_id=1)
        with pytest.raises(PayloadInvalid):
            app.publish("a.b", math.nan, event_id=1)
        app.publish("a.b", {}, event_id=1)
        assert app.operations.status().rejections == {"invalid_input": 3, "payload_invalid": 1}
        with pytest.raises(InvalidInput):
            app.publish("not a type", {}, event_id=2)
        app.enqueue("job", key=1)
        assert app.operations.status().rejections == {"invalid_input": 4, "payload_invalid": 1}

        async def again() -> None:
            with pytest.raises(InvalidInput):
                await app.publish_async("not a type", {}, event_id=3)
            await app.publish_many_async([Event("a.b", {}, 3)])
            with pytest.raises(PayloadInvalid):
                await app.enqueue_async("job", math.nan, key=3)
            await app.enqueue_async("job", key=3)

        asyncio.run(again())
        assert app.operations.status().rejections == {"invalid_input": 5, "payload_invalid": 2}


@pytest.mark.parametrize("call", ["enqueue", "publish"])
def test_a_count_whose_transaction_failed_is_written_by_a_later_one(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(tmp_path) as app:

        def write(key: int) -> None:
            if call == "enqueue":
                app.enqueue("job", key=key)
            else:
                app.publish("a.b", {}, event_id=key)

        def fail(*arguments: Any, **more: Any) -> Any:
            raise LedgerBusy("the ledger is busy")

        with pytest.raises(InvalidInput):
            app.publish("not a type", {}, event_id=1)
        with monkeypatch.context() as patch:
            patch.setattr("redrive.ledger.sqlite.enqueue.accept_all", fail)
            patch.setattr("redrive.ledger.sqlite.enqueue.publish_all", fail)
            for _ in range(2):
                with pytest.raises(LedgerBusy):
                    write(1)
        assert app.operations.status().rejections == {}
        write(2)
        write(3)
        assert app.operations.status().rejections == {"invalid_input": 1}


def test_a_conflict_still_counts_what_was_refused_before_it(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        app.enqueue("job", 1, key=1)
        app.publish("a.b", {"n": 1}, event_id=1)
        for conflicting in (
            lambda: app.enqueue("job", 2, key=1),
            lambda: app.publish("a.b", {"n": 2}, event_id=1),
        ):
            with pytest.raises(PayloadInvalid):
                app.enqueue("job", math.nan, key=2)
            with pytest.raises(Conflict):
                conflicting()
        assert app.operations.status().rejections["payload_invalid"] == 2
