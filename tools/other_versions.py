"""Runs the unit and contract tests on every supported Python that is present, beside the main one.

Each version gets its own environment, `.venv-3.12` and so on. The versions run beside each other: none of these tests
holds a real deadline that two cores could not keep. PostgreSQL is left to the main version: what differs between
versions of Python is not in SQL. Says which versions ran and which are absent; fails if any run fails.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environment import ROOT, SetupFailed, clean_environ, ensure, fail, venv_python
from pythons import SUPPORTED, present

TESTS = ["tests/unit", "tests/contract", "-k", "not postgres and not pgbouncer"]


def run(version: str, base: Path) -> tuple[int, str, str]:
    """One version's exit code, what it printed, and a line about it. Raises `SetupFailed`."""
    venv = ROOT / f".venv-{version}"
    ensure(base, venv)
    command = [str(venv_python(venv)), "-m", "pytest", "-m", "not full", "-q", *TESTS]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    verdict = "passed" if done.returncode == 0 else f"FAILED (exit {done.returncode})"
    line = f"{verdict} in {time.monotonic() - started:.0f} s: {' '.join(TESTS)}"
    return done.returncode, f"+ {venv.name}/bin/python {' '.join(command[1:])}\n{done.stdout}", line


def main() -> int:
    """Exit status: 0 when every present version passed."""
    main_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine = present()
    others = [version for version in SUPPORTED if version != main_version and version in machine]
    lines = dict.fromkeys(SUPPORTED, "absent from this machine")
    lines[main_version] = "runs everything (the main environment)"
    failed = False
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        runs = {version: pool.submit(run, version, machine[version]) for version in others}
        for version, one in runs.items():
            try:
                code, printed, lines[version] = one.result()
            except SetupFailed as error:
                fail(str(error))
            print(printed, flush=True)
            failed = failed or code != 0
    for version, line in lines.items():
        print(f"Python {version}: {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
