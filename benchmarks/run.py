"""Measures redrive against a peer in the same run: ``make bench``.

Each benchmark runs ours and the peer in turn (A B A B ...), each run in a fresh process on a fresh database, and
compares medians. Prints a table and writes ``build/bench.json``. Exit status 1: a bar was missed.

    python benchmarks/run.py [--runs 5] [--only NAME] [--quick] [--check] [--slots N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import postgres_suite
import postgres_table
from common import Figures, Sink, copy_of, run_child

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One comparison. ``bar`` is about the ratio, or about our figure alone."""

    name: str
    script: str
    peer_name: str
    unit: str
    count: int
    quick: int
    peer_count: int
    peer_quick: int
    slots: int
    bar: str
    met: Callable[[float, float], bool]
    """From our median and the ratio."""
    filled_ours: bool = False
    filled_peer: bool = False
    sink: bool = False
    faster_is_less: bool = False


BENCHMARKS = (
    Benchmark(
        "sqlite_drain",
        "drain.py",
        "huey SqliteHuey(fsync=True), 1 consumer thread",
        "jobs/s",
        100_000,
        20_000,
        20_000,
        5_000,
        500,
        "ratio >= 8",
        lambda ours, ratio: ratio >= 8,
        filled_ours=True,
        filled_peer=True,
    ),
    Benchmark(
        "sqlite_publish",
        "publish.py",
        "sqlite3 executemany of the payload alone, batches of 100, FULL",
        "events/s",
        40_000,
        10_000,
        40_000,
        10_000,
        0,
        "ours >= 20,000/s",
        lambda ours, ratio: ours >= 20_000,
    ),
    Benchmark(
        "sqlite_webhook",
        "webhook.py",
        "aiohttp loop, POST only, 100 connections",
        "deliveries/s",
        40_000,
        10_000,
        40_000,
        10_000,
        600,
        "ratio >= 2",
        lambda ours, ratio: ratio >= 2,
        filled_ours=True,
        sink=True,
    ),
    Benchmark(
        "sqlite_pickup",
        "pickup.py",
        "huey SqliteHuey(fsync=True), 1 thread polling every 1 ms",
        "ms, p50",
        200,
        60,
        200,
        60,
        100,
        "ours < 2 ms",
        lambda ours, ratio: ours < 2.0,
        faster_is_less=True,
    ),
)


def machine() -> dict[str, str]:
    """What a figure means nothing without."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in ("uvloop", "httptools", "huey", "aiohttp")},
    }


class Runner:
    """Runs benchmarks in one scratch folder, with one sink."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._sink: Sink | None = None

    def stop(self) -> None:
        """End the sink."""
        if self._sink is not None:
            self._sink.stop()

    def measure(self, one: Benchmark) -> dict[str, object]:
        """Ours and the peer in turn; the record for the file."""
        arguments = self._arguments
        count = one.quick if arguments.quick else one.count
        peer_count = one.peer_quick if arguments.quick else one.peer_count
        slots = arguments.slots or one.slots
        if one.sink and self._sink is None:
            self._sink = Sink(self._folder)
        common: dict[str, Any] = {"port": self._sink.port if one.sink and self._sink is not None else 0}
        mine, other = {**common, "count": count, "slots": slots}, {**common, "count": peer_count}
        templates = {
            "ours": self._template(one, "ours", mine) if one.filled_ours else None,
            "peer": self._template(one, "peer", other) if one.filled_peer else None,
        }
        ours: list[Figures] = []
        peers: list[Figures] = []
        for number in range(arguments.runs):
            ours.append(self._run(one, "ours", templates["ours"], {**mine, "check": arguments.check}, count))
            peers.append(self._run(one, "peer", templates["peer"], other, peer_count))
            print(
                f"  {one.name} {number + 1}/{arguments.runs}: ours {ours[-1]['value']:,.6g}, "
                f"peer {peers[-1]['value']:,.6g} {one.unit}",
                file=sys.stderr,
                flush=True,
            )
        for template in templates.values():
            if template is not None:
                template.unlink()
        return self._record(one, ours, peers, slots, count, peer_count)

    def _template(self, one: Benchmark, role: str, options: dict[str, Any]) -> Path:
        path = self._folder / f"{one.name}-{role}.db"
        run_child(one.script, f"fill-{role}", file=path, **options)
        return path

    def _run(self, one: Benchmark, role: str, template: Path | None, options: dict[str, Any], count: int) -> Figures:
        sink = self._sink if one.sink else None
        before = (sink.posts(), sink.cpu_seconds()) if sink is not None else (0, 0.0)
        if template is None:
            with tempfile.TemporaryDirectory(prefix="run-", dir=self._folder) as folder:
                figures = run_child(one.script, role, file=Path(folder) / "fresh.db", **options)
        else:
            with copy_of(template) as path:
                figures = run_child(one.script, role, file=path, **options)
        if sink is not None:
            received = sink.posts() - before[0]
            if received != count:
                raise SystemExit(f"{one.name} {role}: the sink received {received} of {count}")
            figures["sink_cpu_us"] = (sink.cpu_seconds() - before[1]) / count * 1e6
        return figures

    @staticmethod
    def _record(
        one: Benchmark, ours: list[Figures], peers: list[Figures], slots: int, count: int, peer_count: int
    ) -> dict[str, object]:
        mine, other = median(run["value"] for run in ours), median(run["value"] for run in peers)
        ratio = other / mine if one.faster_is_less else mine / other
        record: dict[str, object] = {
            "ours": mine,
            "peer": other,
            "peer_name": one.peer_name,
            "ratio": ratio,
            "unit": one.unit,
            "slots": slots,
            "bar": one.bar,
            "met": one.met(mine, ratio),
            "count": count,
            "peer_count": peer_count,
            "runs": {"ours": [run["value"] for run in ours], "peer": [run["value"] for run in peers]},
        }
        for key in ("cpu_us", "p99", "sink_cpu_us", "busy"):
            if key in ours[0]:
                record[key] = median(run[key] for run in ours)
                record[f"peer_{key}"] = median(run[key] for run in peers)
        return record


def _figure(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit.startswith("ms") else f"{value:,.0f}"


def show(results: dict[str, dict[str, object]], about: dict[str, str], runs: int) -> None:
    """The table, for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table(title=f"medians of {runs}, ours and peer in turn; SQLite WAL, synchronous=FULL")
    for name in ("benchmark", "ours", "peer", "unit", "ratio", "bar", "slots", "CPU us ours / peer", "peer is"):
        table.add_column(name, justify="left" if name in ("benchmark", "unit", "bar", "peer is") else "right")
    for name, record in results.items():
        unit = str(record["unit"])
        mine, other = _figure(float(str(record["ours"])), unit), _figure(float(str(record["peer"])), unit)
        if "p99" in record:
            mine += f" (p99 {float(str(record['p99'])):.2f})"
            other += f" (p99 {float(str(record['peer_p99'])):.2f})"
        met = "[green]met[/green]" if record["met"] else "[red]MISSED[/red]"
        table.add_row(
            name,
            mine,
            other,
            unit,
            f"{float(str(record['ratio'])):.2f}",
            f"{record['bar']}: {met}",
            str(record["slots"] or "-"),
            f"{float(str(record['cpu_us'])):.1f} / {float(str(record['peer_cpu_us'])):.1f}",
            str(record["peer_name"]),
        )
    console.print(table)


def main() -> int:
    """Exit status: 1 when a bar was missed."""
    names = [*(one.name for one in BENCHMARKS), *postgres_suite.NAMES]
    parser = argparse.ArgumentParser(description="Ratios against peers measured in the same run.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=names, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="small counts: to see that it works, not to quote")
    parser.add_argument("--check", action="store_true", help="redrive's verify must be clean after every run")
    parser.add_argument("--slots", type=int, default=0, help="instead of each benchmark's own")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json")
    arguments = parser.parse_args()
    if arguments.runs < 1 or arguments.slots < 0:
        parser.error("--runs is at least 1, --slots at least 0")
    # Beside the result, so that the disk under test is the project's and not a memory-backed temporary folder.
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, object]] = {}
    chosen = [name for name in names if arguments.only is None or name in arguments.only]
    on_postgres = [name for name in postgres_suite.NAMES if name in chosen]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.output.parent) as folder:
        runner = Runner(arguments, Path(folder))
        try:
            for one in BENCHMARKS:
                if one.name in chosen:
                    results[one.name] = runner.measure(one)
        finally:
            runner.stop()
        if on_postgres:
            suite = postgres_suite.Suite(arguments, Path(folder))
            served: dict[str, dict[str, object]] = suite.measure(on_postgres)
    about = machine()
    if results:
        show(results, about, arguments.runs)
    if on_postgres:
        about |= postgres_suite.about()
        postgres_table.show(served, about, arguments.runs)
        results |= served
    text = json.dumps({name: {**record, "machine": about} for name, record in results.items()}, indent=2)
    arguments.output.write_text(text + "\n")
    # A goal that is not reached is no missed bar; its record has no ``met``.
    return 1 if any(record["met"] is False for record in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
