"""How ours holds its rate while the ledger grows: ``make bench-growth``.

Each scenario is measured beside the rate that it is compared with, in turn, on one private, durable PostgreSQL server.
Prints a table and writes ``build/bench-growth.json``. Exit status 1: a bar was missed.

    python benchmarks/growth.py [--runs 3] [--only SCENARIO] [--scale 0.01] [--slots 500] [--output FILE]

Rates come from the ledger's own attempt rows: deliveries over the time from the first one's start to the last one's
end. Meanwhile the server is asked for one row by its key, every few milliseconds, and for nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import growth_fill
import psycopg
from growth_drive import Drained, drain, pinned, rss_thirds, worker
from postgres_server import benchmark_server
from tests.services.postgres import PostgresServer

ROOT = Path(__file__).resolve().parent.parent
BEGINNING = 20
"""Deliveries on a ledger that is as good as empty, so that every statement has been planned."""


@dataclass(slots=True)
class Row:
    """One line of the table: a figure, what it is compared with, and the bar for their ratio."""

    name: str
    value: float
    against: float
    unit: str
    bar: float
    at_most: bool = False
    runs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.value / self.against

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


class Growth:
    """The scenarios. ``scale`` multiplies every count: below 1 it shows that it works; its figures say nothing."""

    def __init__(self, server: PostgresServer, runs: int, scale: float, slots: int) -> None:
        self._server = server
        self._runs = runs
        self._scale = scale
        self._slots = slots

    def _count(self, count: int, least: int = 2_000) -> int:
        return max(least, int(count * self._scale))

    def _database(self) -> str:
        name = self._server.create_database()
        growth_fill.prepare(url := self._server.url(name))
        return url

    def _drop(self, url: str) -> None:
        self._server.drop_database(url.rpartition("/")[2])

    def _drain(self, url: str, count: int, *, settle: bool = True, pin: bool = False) -> Drained:
        """Enqueue, settle, and drain with a worker of its own."""
        numbers = growth_fill.fill(url, count, "noop")
        if settle:
            growth_fill.settle(url)
        if not pin:
            return drain(url, numbers, self._slots)
        with pinned(url):
            return drain(url, numbers, self._slots)

    def _empty(self, count: int, *, settle: bool = True, pin: bool = False) -> Drained:
        """A drain of a ledger that has nothing else."""
        url = self._database()
        try:
            return self._drain(url, count, settle=settle, pin=pin)
        finally:
            self._drop(url)

    def full(self) -> list[Row]:
        """Beside a million of another handler's and a million for tomorrow; and beside five million finished ones."""
        count = self._count(100_000)
        waiting, finished = self._database(), self._database()
        _say(f"filling: {self._count(1_000_000):,} waiting twice, {self._count(5_000_000):,} finished")
        growth_fill.fill(waiting, self._count(1_000_000), "other")
        growth_fill.fill(waiting, self._count(1_000_000), "noop", delay_us=growth_fill.DAY_US)
        growth_fill.fill(finished, self._count(5_000_000), "noop", finished=True)
        rates: dict[str, list[float]] = {"empty": [], "waiting": [], "finished": []}
        for _ in range(self._runs):
            rates["empty"].append(self._empty(count).rate)
            rates["waiting"].append(self._drain(waiting, count).rate)
            rates["finished"].append(self._drain(finished, count).rate)
            _say(", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items()))
        self._drop(waiting)
        self._drop(finished)
        empty = median(rates["empty"])
        return [
            Row(f"with {name}", median(rates[name]), empty, "jobs/s, against an empty ledger", 0.9, runs=rates[name])
            for name in ("waiting", "finished")
        ]

    def pinned(self) -> list[Row]:
        """The last fifth of 200,000, with a transaction open all the time and without."""
        count = self._count(200_000, 10_000)
        held: list[float] = []
        free: list[float] = []
        for _ in range(self._runs):
            free.append(self._empty(count).tail_rate(0.2))
            held.append(self._empty(count, pin=True).tail_rate(0.2))
            _say(f"last fifth: unpinned {free[-1]:,.0f}/s, pinned {held[-1]:,.0f}/s")
        return [Row("pinned xmin, last 20%", median(held), median(free), "jobs/s, against unpinned", 0.7, runs=held)]

    def plans(self) -> list[Row]:
        """Never analysed; analysed while empty; grown under a worker that goes on, from nothing or from a hundredth."""
        count = self._count(100_000)
        names = ("fresh", "analysed while empty", "grown from empty", "grown 100x", "vacuumed")
        rates: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(self._runs):
            rates["fresh"].append(self._empty(count, settle=False).rate)
            url = self._database()
            _execute(url, "ANALYZE")
            rates["analysed while empty"].append(self._drain(url, count, settle=False).rate)
            self._drop(url)
            rates["grown from empty"].append(self._grown(count, BEGINNING, vacuum=False)[0])
            for name, rate in zip(names[-2:], self._grown(count, self._count(10_000, 500), vacuum=True), strict=True):
                rates[name].append(rate)
            _say(", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items()))
        medians = {name: median(found) for name, found in rates.items()}
        best = max(medians.values())
        return [
            Row(f"plans: {name}", medians[name], best, "jobs/s, against the best state", 0.9, runs=rates[name])
            for name in names
        ]

    def _grown(self, count: int, small: int, *, vacuum: bool) -> tuple[float, ...]:
        """Rates once the ledger has grown to a million, and with ``vacuum`` once it is vacuumed as well.

        The worker's plans are made while there are ``small``, and nothing makes it plan anew: it keeps its connections,
        and neither statistics nor a vacuum comes between. A real ledger gets both within minutes.
        """
        url = self._database()
        _execute(url, "ANALYZE")
        for table in ("delivery", "delivery_state", "attempt", "identity"):
            _execute(url, f"ALTER TABLE redrive.{table} SET (autovacuum_enabled = false)")
        with worker(url, self._slots) as one:
            one.drain(growth_fill.fill(url, small, "noop"))
            if vacuum:
                _execute(url, "ANALYZE")
                one.drain(growth_fill.fill(url, small, "noop"))
            with one.stopped():
                grown = growth_fill.fill(url, self._count(1_000_000, 50_000), "noop")
                _execute(url, "CHECKPOINT")
            rates = [one.drain(grown[:count]).rate]
            if vacuum:
                with one.stopped():
                    _execute(url, "VACUUM (ANALYZE)")
                    _execute(url, "CHECKPOINT")
                # What it took before it was stopped is not of the vacuumed ledger.
                rates.append(one.drain(grown[one.closed_of(grown) + 2 * self._slots :][:count]).rate)
        self._drop(url)
        return tuple(rates)

    def memory(self) -> list[Row]:
        """Resident memory of a worker over a million deliveries."""
        count = self._count(1_000_000, 20_000)
        url = self._database()
        numbers = growth_fill.fill(url, count, "noop")
        growth_fill.settle(url)
        drained = drain(url, numbers, self._slots, sample=True)
        self._drop(url)
        first, middle, last = rss_thirds(drained.rss)
        _say(f"resident: {first:.1f}, {middle:.1f}, {last:.1f} MiB by thirds, at {drained.rate:,.0f}/s")
        return [Row("worker's memory, last third", last, first, "MiB, against the first third", 1.1, at_most=True)]


SCENARIOS: dict[str, Callable[[Growth], list[Row]]] = {
    "full": Growth.full,
    "pinned": Growth.pinned,
    "plans": Growth.plans,
    "memory": Growth.memory,
}


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(statement.encode())


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def show(rows: list[Row], title: str) -> None:
    """The table, for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in ("scenario", "value", "against", "unit", "ratio", "bar"):
        table.add_column(name, justify="left" if name in ("scenario", "unit", "bar") else "right")
    for row in rows:
        met = "[green]met[/green]" if row.met else "[red]MISSED[/red]"
        bar = f"{'<=' if row.at_most else '>='} {row.bar}: {met}"
        table.add_row(row.name, f"{row.value:,.1f}", f"{row.against:,.1f}", row.unit, f"{row.ratio:.2f}", bar)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def main() -> int:
    """Exit status: 1 when a bar was missed."""
    parser = argparse.ArgumentParser(description="Rates while the ledger grows.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append", help="may be given more than once")
    parser.add_argument("--scale", type=float, default=1.0, help="times every count: to see that it works")
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-growth.json")
    arguments = parser.parse_args()
    if arguments.runs < 1 or not 0 < arguments.scale <= 10 or arguments.slots < 1:
        parser.error("--runs and --slots are at least 1, --scale is above 0 and at most 10")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="growth-", dir=arguments.output.parent) as folder,
        benchmark_server(Path(folder)) as server,
    ):
        growth = Growth(server, arguments.runs, arguments.scale, arguments.slots)
        for name, scenario in SCENARIOS.items():
            if arguments.only is None or name in arguments.only:
                _say(name)
                rows += scenario(growth)
    show(rows, f"PostgreSQL, one worker process, {arguments.slots} slots; medians of {arguments.runs}")
    record: dict[str, Any] = {
        row.name: {
            "value": row.value,
            "against": row.against,
            "unit": row.unit,
            "ratio": row.ratio,
            "bar": f"ratio {'<=' if row.at_most else '>='} {row.bar}",
            "met": row.met,
            "runs": row.runs,
            "scale": arguments.scale,
        }
        for row in rows
    }
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
