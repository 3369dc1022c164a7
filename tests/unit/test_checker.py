"""The offline checker: clean on a real run, and on each planted fault exactly the rule that names it turns red."""

from __future__ import annotations

import copy
import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.crash.rig import KILLED, Rig, receiver
from tests.acceptance.crash.scenario import Scenario

from redrive.domain import identity
from redrive.testing.checker import RULES, Report, check
from redrive.testing.evidence import EffectsLog, ProducerLog, read_lines

EVENTS = {"ok": 2, "flaky": 2, "bad": 1, "hang": 1, "down": 1, "limited": 1}
JOBS = {"plain": 1, "again": 1, "refused": 1, "ledgered": 1}
MOST = 3
STRANGER = identity.to_text("dlv", bytes(range(16)))
Log = list[dict[str, Any]]


@dataclass
class Record:
    """One run: three logs, the ledger as it was before any work, as a kill left it, and at the end."""

    producer: Log
    requests: Log
    effects: Log
    before: Path
    killed: Path
    killed_at: int
    ledger: Path
    names: dict[str, str]
    """Delivery IDs by key."""

    def check(self, **options: Any) -> Report:
        return check(self.producer, self.ledger, self.requests, self.effects, **options)

    def request(self, key: str, attempt: str = "0.1") -> dict[str, Any]:
        return next(r for r in self.requests if r["delivery"] == self.names[key] and r["attempt"] == attempt)

    def write(self, statement: str, key: str) -> None:
        """Change the ledger as no engine could: without triggers, without checks. ``:seq`` is the delivery's."""
        conn = sqlite3.connect(self.ledger)
        try:
            conn.execute("PRAGMA ignore_check_constraints = ON")
            for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                conn.execute(f"DROP TRIGGER {name}")
            raw = identity.from_text("dlv", self.names[key])
            (seq,) = conn.execute("SELECT seq FROM delivery WHERE delivery_id = ?", (raw,)).fetchone()
            changed = conn.execute(statement, {"seq": seq}).rowcount
            conn.commit()
        finally:
            conn.close()
        assert changed == 1, f"{changed} rows were changed by {statement}"


def _copy(source: Path, target: Path) -> Path:
    """A ledger with what is in its write-ahead log."""
    here, there = sqlite3.connect(source), sqlite3.connect(target)
    here.backup(there)
    here.close()
    there.close()
    return target


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("recorded")
    with receiver(folder / "receiver", ["/run"]) as process:
        scenario = Scenario(process.port, "/run", events=EVENTS, jobs=JOBS, max_attempts=MOST)
        with Rig(folder / "rig", process, scenario) as rig:
            rig.produce()
            before = _copy(rig.ledger, folder / "before.db")
            assert rig.run("work", "send.after:1", 1) == KILLED, rig.complaints()
            killed_at = time.time_ns() // 1000
            killed = _copy(rig.ledger, folder / "killed.db")
            rig.finish()
            rig.assert_sound()
            names = {row["key"]: row["name"] for row in rig.deliveries()}
            producer = [dict(line) for line in read_lines(rig.folder / "producer.jsonl")]
            return Record(producer, rig.requests(), rig.effects(), before, killed, killed_at, rig.ledger, names)


@pytest.fixture
def record(recorded: Record, tmp_path: Path) -> Record:
    """The recorded run, to be tampered with."""
    mine = copy.deepcopy(recorded)
    mine.ledger = _copy(recorded.ledger, tmp_path / "ledger.db")
    return mine


def test_a_real_run_is_clean_and_counted(recorded: Record) -> None:
    report = recorded.check()
    assert report.ok, report
    summary = report.summary()
    assert {rule: summary[rule] for rule in RULES} == dict.fromkeys(RULES, 0)
    expected = {"acknowledged": 12, "unacknowledged": 0, "deliveries": 12, "delivered": 9, "dead": 3, "recovered": 2}
    assert {name: summary[name] for name in expected} == expected
    # One request hung, and one attempt took its worker with it.
    assert summary["unknown"] == 2
    assert summary["requests"] == len(recorded.requests)
    assert summary["waiting"] == summary["leased"] == summary["held"] == 0


# --- planted faults: each tampers with one log


def _lost_in_the_producers_log(r: Record) -> None:
    r.producer += [
        {"kind": kind, "deliveries": [STRANGER], "event": None, "body_sha256": None}
        for kind in ("tried", "acknowledged")
    ]


def _never_handed_over(r: Record) -> None:
    name = r.names["plain-0"]
    r.producer = [line for line in r.producer if name not in line["deliveries"]]


def _seen_and_unknown(r: Record) -> None:
    r.requests.append({**r.request("ok-0"), "delivery": STRANGER})


def _before_its_reservation(r: Record) -> None:
    r.request("ok-1")["at_us"] -= 60_000_000


def _without_a_reservation(r: Record) -> None:
    raw = identity.from_text("dlv", r.names["bad-0"])
    extra = {"attempt": "0.2", "attempt_id": identity.to_text("att", identity.attempt_id(raw, 2))}
    r.requests.append({**r.request("bad-0"), **extra})


def _sent_twice_in_one_attempt(r: Record) -> None:
    r.requests.append(r.request("flaky-0"))
    r.requests.sort(key=lambda seen: seen["at_us"])


def _one_attempt_too_many(r: Record) -> None:
    r.write("UPDATE attempt SET next_at = ended_at + 60000 WHERE seq = :seq AND number = 3", "down-0")
    r.write(
        "INSERT INTO attempt SELECT seq, fence + 1, generation, 4, worker, next_at, next_at + 9, 9, outcome, "
        "'connect', NULL, NULL, NULL, 0, 0, NULL FROM attempt WHERE seq = :seq AND number = 3",
        "down-0",
    )
    r.write("UPDATE delivery_state SET attempt = 4, fence = fence + 1 WHERE seq = :seq", "down-0")
    r.write("UPDATE dead_letter SET attempts = 4 WHERE seq = :seq", "down-0")


def _started_past_the_deadline(r: Record) -> None:
    for table in ("delivery", "delivery_state"):
        r.write(f"UPDATE {table} SET deadline_at = (SELECT min(started_at) FROM attempt) WHERE seq = :seq", "down-0")


def _a_gap_in_the_numbers(r: Record) -> None:
    r.write("UPDATE attempt SET number = 3 WHERE seq = :seq AND number = 2", "flaky-0")


def _seen_under_another_number(r: Record) -> None:
    r.request("ok-1")["attempt"] = "0.2"


def _a_fence_that_went_back(r: Record) -> None:
    r.write("UPDATE delivery_state SET fence = fence - 1 WHERE seq = :seq", "flaky-1")


def _an_old_fence_used_after_a_newer_one(r: Record) -> None:
    r.requests.remove(first := r.request("down-0"))
    r.requests.append(first)


def _an_end_that_was_not_the_end(r: Record) -> None:
    r.write("UPDATE attempt SET next_at = NULL WHERE seq = :seq AND number = 1", "down-0")


def _a_millisecond_early(r: Record) -> None:
    r.write(
        "UPDATE attempt SET started_at = (SELECT next_at - 1000 FROM attempt WHERE seq = :seq AND number = 1) "
        "WHERE seq = :seq AND number = 2",
        "flaky-0",
    )


def _below_the_floor(r: Record) -> None:
    r.write("UPDATE attempt SET next_at = ended_at + 1 WHERE seq = :seq AND number = 1", "flaky-0")


def _retry_after_not_honoured(r: Record) -> None:
    r.write("UPDATE attempt SET next_at = ended_at + 20000 WHERE seq = :seq AND number = 1", "limited-0")


def _above_the_cap(r: Record) -> None:
    r.write("UPDATE attempt SET retry_after = NULL WHERE seq = :seq AND number = 1", "limited-0")


def _delivered_and_never_answered_so(r: Record) -> None:
    r.request("ok-1")["answer"] = 503


def _a_success_recorded_as_a_failure(r: Record) -> None:
    r.request("bad-0")["answer"] = 200


def _a_job_without_its_effect(r: Record) -> None:
    r.effects = [step for step in r.effects if (step["delivery"], step["step"]) != (r.names["again-0"], "effect")]


def _a_second_success(r: Record) -> None:
    r.request("flaky-0")["answer"] = 200


def _a_job_that_took_effect_twice(r: Record) -> None:
    start = next(step for step in r.effects if step["delivery"] == r.names["again-0"])
    r.effects.append({**start, "step": "effect"})


def _another_body(r: Record) -> None:
    r.request("down-0", "0.2")["body_sha256"] = "0" * 64


def _a_bad_signature(r: Record) -> None:
    r.request("ok-1")["signature"] = "bad"


def _no_signature(r: Record) -> None:
    r.request("ok-1")["signature"] = "missing"


def _another_payload_than_was_handed_over(r: Record) -> None:
    r.write("UPDATE delivery SET payload = X'7b7d' WHERE seq = :seq", "plain-0")


def _a_dead_letter_removed(r: Record) -> None:
    r.write("DELETE FROM dead_letter WHERE seq = :seq", "bad-0")


def _a_dead_letter_that_says_something_else(r: Record) -> None:
    r.write("UPDATE dead_letter SET cause = 'permanent' WHERE seq = :seq", "down-0")


def _dead_turned_cancelled(r: Record) -> None:
    r.write("UPDATE delivery_state SET disposition = 5 WHERE seq = :seq", "down-0")


def _delivered_turned_no_op(r: Record) -> None:
    r.write("UPDATE delivery_state SET disposition = 3 WHERE seq = :seq", "ok-0")


def _a_charge_given_back(r: Record) -> None:
    r.write("UPDATE delivery_state SET attempt = attempt - 1 WHERE seq = :seq", "down-0")


def _in_no_disposition(r: Record) -> None:
    r.write("DELETE FROM delivery_state WHERE seq = :seq", "ok-0")


FAULTS: list[tuple[Callable[[Record], None], str, str | None]] = [
    (_lost_in_the_producers_log, "lost", None),
    (_in_no_disposition, "lost", "ok-0"),
    (_never_handed_over, "unexpected", "plain-0"),
    (_seen_and_unknown, "unexpected", None),
    (_before_its_reservation, "write_ahead", "ok-1"),
    (_without_a_reservation, "write_ahead", "bad-0"),
    (_sent_twice_in_one_attempt, "write_ahead", "flaky-0"),
    (_one_attempt_too_many, "over_budget", "down-0"),
    (_started_past_the_deadline, "over_budget", "down-0"),
    (_a_gap_in_the_numbers, "gaps", "flaky-0"),
    (_seen_under_another_number, "gaps", "ok-1"),
    (_a_fence_that_went_back, "fence", "flaky-1"),
    (_an_old_fence_used_after_a_newer_one, "fence", "down-0"),
    (_an_end_that_was_not_the_end, "terminal", "down-0"),
    (_a_millisecond_early, "early", "flaky-0"),
    (_below_the_floor, "early", "flaky-0"),
    (_retry_after_not_honoured, "early", "limited-0"),
    (_above_the_cap, "early", "limited-0"),
    (_delivered_and_never_answered_so, "untrue", "ok-1"),
    (_a_success_recorded_as_a_failure, "untrue", "bad-0"),
    (_a_job_without_its_effect, "untrue", "again-0"),
    (_a_second_success, "unexplained", "flaky-0"),
    (_a_job_that_took_effect_twice, "unexplained", "again-0"),
    (_another_body, "altered", "down-0"),
    (_a_bad_signature, "altered", "ok-1"),
    (_no_signature, "altered", "ok-1"),
    (_another_payload_than_was_handed_over, "altered", "plain-0"),
    (_a_dead_letter_removed, "dead_letter", "bad-0"),
    (_a_dead_letter_that_says_something_else, "dead_letter", "down-0"),
    (_dead_turned_cancelled, "fold", "down-0"),
    (_delivered_turned_no_op, "fold", "ok-0"),
    (_a_charge_given_back, "fold", "down-0"),
]


@pytest.mark.parametrize(("fault", "rule", "key"), FAULTS, ids=[fault.__name__.strip("_") for fault, _, _ in FAULTS])
def test_a_planted_fault_turns_exactly_its_rule_red(
    record: Record, fault: Callable[[Record], None], rule: str, key: str | None
) -> None:
    assert record.check().ok
    fault(record)
    report = record.check()
    assert not report.ok
    found = {(problem.rule, problem.delivery) for problem in report.problems}
    assert found == {(rule, STRANGER if key is None else record.names[key])}, str(report)
    assert report.summary()[rule] >= 1
    assert f"{rule}: " in str(report)


def test_every_rule_but_overdue_has_a_planted_fault_above() -> None:
    assert {rule for _, rule, _ in FAULTS} == set(RULES) - {"overdue"}


# --- overdue: the ledger as it was before the end


def test_what_was_never_worked_on_is_overdue_after_a_drain(record: Record) -> None:
    report = check(record.producer, record.before, [], [])
    assert {problem.rule for problem in report.problems} == {"overdue"}
    assert report.summary()["overdue"] == len(record.names)


def test_without_a_drain_only_what_is_past_its_grace_is_overdue(record: Record, tmp_path: Path) -> None:
    """As a kill left it: its one lease is open, and the logs end there."""
    record.ledger = _copy(record.killed, tmp_path / "killed.db")
    record.requests = [seen for seen in record.requests if seen["at_us"] < record.killed_at]
    record.effects = [step for step in record.effects if step["at_us"] < record.killed_at]
    conn = sqlite3.connect(record.ledger)
    rows = conn.execute("SELECT delivery_id FROM delivery JOIN delivery_state USING (seq) WHERE disposition < 2")
    open_ones = {identity.to_text("dlv", raw) for (raw,) in rows}
    conn.close()
    assert record.names["ok-0"] in open_ones
    assert record.check(drained=False).ok, record.check(drained=False)
    record.write("UPDATE clock SET now = now + 10000000 + 0 * :seq", "ok-0")
    report = record.check(drained=False)
    assert {problem.rule for problem in report.problems} == {"overdue"}
    assert {problem.delivery for problem in report.problems} == open_ones
    assert record.check(drained=False, grace_s=60).ok


# --- what is no fault


def test_a_second_success_is_explained_by_an_attempt_recorded_unknown(record: Record) -> None:
    before = record.check().counts["duplicates_explained"]
    record.request("hang-0")["answer"] = 200
    report = record.check()
    assert report.ok, report
    assert report.counts["duplicates_explained"] == before + 1


def test_jobs_are_not_held_to_an_oracle_that_did_not_watch_them(record: Record) -> None:
    report = check(record.producer, record.ledger, record.requests)
    assert report.ok, report
    assert report.counts["handler_calls"] == 0


def test_what_was_tried_and_never_acknowledged_may_be_there_or_not(record: Record) -> None:
    name = record.names["plain-0"]
    record.producer = [
        line for line in record.producer if line["kind"] == "tried" or name not in line["deliveries"]
    ] + [{"kind": "tried", "deliveries": [STRANGER], "event": None}]
    report = record.check()
    assert report.ok, report
    assert report.counts["unacknowledged"] == 1


def test_logs_are_read_without_the_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    producer, effects = ProducerLog(tmp_path / "producer.jsonl"), EffectsLog(tmp_path / "effects.jsonl")
    producer.tried(event="evt_1")
    producer.acknowledged(["dlv_1"], "00", "evt_1")
    effects.note("start", "dlv_1", 0, 1, 1)
    producer.close()
    effects.close()
    with (tmp_path / "producer.jsonl").open("ab") as file:
        file.write(json.dumps({"kind": "tried"}).encode()[:9])
    kinds = [line["kind"] for line in read_lines(tmp_path / "producer.jsonl")]
    assert kinds == ["tried", "acknowledged"]
    (step,) = read_lines(tmp_path / "effects.jsonl")
    assert (step["step"], step["attempt"], step["fence"]) == ("start", "0.1", 1)
    assert read_lines(tmp_path / "none.jsonl") == []
