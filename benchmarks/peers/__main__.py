"""The peers alone, without ours: ``python benchmarks/peers [--only PEER] [--mode MODE] [--runs 3] [--slots N]``.

Prints one JSON line for each peer and mode: the best run by value, and the values of all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # benchmarks/, where `common` and `peers` are

from common import Sink  # noqa: E402
from postgres_server import benchmark_server  # noqa: E402

import peers  # noqa: E402

COUNTS = {"enqueue": 100_000, "drain": 100_000, "drain_2": 100_000, "webhook": 10_000, "pickup": 200}
SLOW = {"procrastinate": 2_000}
"""Peers that would take minutes get fewer jobs to drain."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The PostgreSQL peers alone.")
    parser.add_argument("--only", choices=sorted(peers.PEERS), action="append")
    parser.add_argument("--mode", choices=peers.MODES, action="append")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--count", type=int, default=0, help="instead of each mode's own")
    parser.add_argument("--slots", type=int, default=0, help="instead of each peer's best")
    parser.add_argument("--folder", type=Path, default=HERE.parent.parent / "build" / "bench")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="peers-", dir=arguments.folder) as scratch,
        benchmark_server(Path(scratch)) as server,
    ):
        sink = Sink(Path(scratch))
        try:
            for name in arguments.only or peers.PEERS:
                for mode in arguments.mode or peers.MODES:
                    _measure(name, mode, server.url(), sink.port, arguments)
        finally:
            sink.stop()


def _measure(name: str, mode: str, url: str, port: int, arguments: argparse.Namespace) -> None:
    count = arguments.count or COUNTS[mode]
    if mode in ("drain", "drain_2", "webhook"):
        count = min(count, SLOW.get(name, count))
    runs = [
        peers.run(name, mode, url, count, arguments.slots, port, arguments.folder / "node")
        for _ in range(arguments.runs)
    ]
    values = [run["value"] for run in runs]
    best = runs[values.index(min(values) if mode == "pickup" else max(values))]
    shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in best.items()}
    print(json.dumps({"peer": name, "mode": mode, "count": count, **shown, "runs": [round(v, 2) for v in values]}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
