"""A process of its own that creates PostgreSQL ledgers: ``python -m tests.contract.postgres_child create URL ROUNDS``.

It says ``ready``, waits for a line on its standard input, creates, and prints one JSON document.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from redrive.ledger import opening

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a child and wait until it is ready."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.postgres_child", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def together(children: list[subprocess.Popen[str]], timeout: float = 60) -> list[Any]:
    """Let all of them go at once; what each printed."""
    results = []
    try:
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            output, _ = child.communicate(timeout=timeout)
            assert child.returncode == 0
            results.append(json.loads(output))
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return results


def create(url: str, rounds: str) -> list[int]:
    """Create one ledger after another as fast as the others do; how many steps each call applied."""
    return [len(opening.create(f"{url}?schema=race_{number}", "test")) for number in range(int(rounds))]


if __name__ == "__main__":
    _, doing, *rest = sys.argv
    assert doing == "create"
    opening.check_url(rest[0])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(create(*rest)))
