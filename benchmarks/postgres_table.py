"""The tables of the PostgreSQL benchmarks, for people."""

from __future__ import annotations

import sys
from typing import Any


def _rate(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit.startswith("ms") else f"{value:,.0f}"


def _verdict(record: dict[str, Any]) -> str:
    parts = []
    if record["met"] is not None:
        parts.append(f"{record['bar']}: {'[green]met[/green]' if record['met'] else '[red]MISSED[/red]'}")
    if record["goal_met"] is not None:
        parts.append(f"goal {record['goal']}: {'[green]met[/green]' if record['goal_met'] else 'not met'}")
    return "; ".join(parts)


def show(results: dict[str, dict[str, Any]], about: dict[str, str], runs: int) -> None:
    """One table of ratios, and one of what each side cost for each delivery."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table(title=f"PostgreSQL, durable commits: medians of {runs}, ours and the peers in turn")
    for name in ("benchmark", "ours", "peer", "unit", "ratio", "bar or goal", "slots ours / peer", "peer is"):
        table.add_column(name, justify="left" if name in ("benchmark", "unit", "bar or goal", "peer is") else "right")
    for name, record in results.items():
        unit = record["unit"]
        mine, other = _rate(record["ours"], unit), _rate(record["peer"], unit)
        if "p99" in record:
            mine += f" (p99 {record['p99']:.2f}, closed {record['closed_p50']:.2f} / {record['closed_p99']:.2f})"
            other += f" (p99 {record['peer_p99']:.2f})"
        slots = f"{record['slots'] or '-'} / {record['peer_slots'] or '-'}"
        table.add_row(
            name, mine, other, unit, f"{record['ratio']:.2f}", _verdict(record), slots, str(record["peer_name"])
        )
    console.print(table)
    console.print(_costs(results))


def _costs(results: dict[str, dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="for each delivery; a rate in parentheses counts from before the worker starts")
    for name in ("who", "value", "worker CPU us", "server CPU us", "WAL bytes", "statements", "sink CPU us"):
        table.add_column(name, justify="left" if name == "who" else "right")
    seen = set()
    for record in results.values():
        for one in record["all"].values():
            if (who := f"{one['is']}, {one['count']:,}") in seen:
                continue
            seen.add(who)
            value = f"{one['value']:,.2f} ms" if "p99" in one else f"{one['value']:,.0f}/s"
            if "p99" in one:
                value += f" (p99 {one['p99']:.2f})"
            if "from_start" in one:
                value += f" ({one['from_start']:,.0f})"
            mark = "" if one["statements_are"] == "statements" else " transactions"
            table.add_row(
                who,
                value,
                f"{one['cpu_us']:.1f}",
                f"{one['server_cpu_us']:.1f}",
                f"{one['wal_bytes']:,.0f}",
                f"{one['statements']:.3f}{mark}",
                f"{one['sink_cpu_us']:.1f}" if "sink_cpu_us" in one else "-",
            )
    return table
