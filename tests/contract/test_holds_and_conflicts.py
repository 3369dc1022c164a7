"""Switching a destination while it is being switched back, and conflicts that have no delivery to be listed with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.reads_support import POLICY, START, UNSURE, opened

from redrive import Conflict, Redrive
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.ledger.verify import verify
from redrive.webhooks import destinations
from redrive.webhooks.settings import DestinationSettings

NOT_THERE = Outcome(OutcomeKind.PERMANENT, Category.HTTP_4XX, status=400, flags=Flag.RULED_OUT)


def made(tmp_path: Path) -> Redrive:
    app = Redrive(f"sqlite:///{tmp_path / 'l.db'}")
    app.init()
    return app


def held(app: Redrive) -> int:
    count: int = app.ledger.read_sync(lambda tx: tx.rows("SELECT count(*) FROM delivery_state WHERE hold <> 0"))[0][0]
    return count


@pytest.mark.parametrize("first", ["disable", "enable"])
def test_a_switch_that_is_switched_back_meanwhile_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The later decision stands for every delivery, whichever of the two is still at its chunks."""
    monkeypatch.setattr(destinations, "CHUNK", 10)
    with made(tmp_path) as app, Redrive(f"sqlite:///{tmp_path / 'l.db'}") as other:
        app.destinations.add("d", DestinationSettings(url="https://example.com/x", event_types=("*",)))
        for n in range(35):
            app.publish("t.x", {}, event_id=n)
        if first == "enable":
            app.destinations.disable("d", reason="test")
        points: list[str] = []
        app.ledger.writer.on_commit.append(points.append)
        answers: list[int] = []

        def back(total: int) -> None:
            if not answers:
                answers.append(-1)
                if first == "disable":
                    answers.append(other.destinations.enable("d"))
                else:
                    answers.append(other.destinations.disable("d", reason="again"))

        if first == "disable":
            assert app.destinations.disable("d", reason="test", progress=back) == 10
        else:
            assert app.destinations.enable("d", progress=back) == 10
        assert answers == [-1, 10]
        assert app.destinations.get("d").enabled is (first == "disable")
        assert held(app) == (0 if first == "disable" else 35)
        assert set(points) == {"operator"}, "which hints workers"
        assert app.operations.verify().ok


def test_a_conflict_on_an_event_without_deliveries_is_counted(tmp_path: Path) -> None:
    with made(tmp_path) as app:
        app.publish("t.x", {"a": 1}, event_id="1")
        for _ in range(2):
            with pytest.raises(Conflict):
                app.publish("t.x", {"a": 2}, event_id="1")
        app.publish("t.x", {"a": 1}, event_id="1")
        assert app.operations.status().rejections == {"conflict": 2}
        app.destinations.add("d", DestinationSettings(url="https://example.com/x", event_types=("*",)))
        app.publish("t.x", {"a": 1}, event_id="2")
        with pytest.raises(Conflict):
            app.publish("t.x", {"a": 2}, event_id="2")
        status = app.operations.status()
        assert (status.rejections, str(status.conflicts)) == ({"conflict": 2}, "1"), "listed with its delivery"


def test_what_a_confirm_ruled_out_is_no_longer_ambiguous(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as desk:
        assert POLICY.max_attempts > 2
        assert desk.now == START
        seq = desk.enqueue("a").seq
        desk.attempt(UNSURE, seq)
        assert desk.state(seq)["ambiguous"] == 1
        desk.attempt(NOT_THERE, seq)
        assert (desk.state(seq)["disposition"], desk.state(seq)["ambiguous"]) == (4, 0)
        assert verify(desk.ledger).problems == ()
