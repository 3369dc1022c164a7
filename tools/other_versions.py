"""Runs the unit and contract tests on every supported Python that is present, beside the main one.

Each version gets its own environment, `.venv-3.12` and so on. Says which versions ran and which are
absent; fails if any run fails.
"""

from __future__ import annotations

import subprocess
import sys
import time

from environment import ROOT, SetupFailed, clean_environ, ensure, fail, venv_python
from pythons import SUPPORTED, present

TESTS = ["tests/unit", "tests/contract"]
# PostgreSQL is left to the main version: what differs between versions of Python is not in SQL.
CHOSEN = ["-k", "not postgres and not pgbouncer"]


def main() -> int:
    """Exit status: 0 when every present version passed."""
    main_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine = present()
    results: dict[str, str] = {}
    for version in SUPPORTED:
        if version == main_version:
            results[version] = "runs everything (the main environment)"
        elif version not in machine:
            results[version] = "absent from this machine"
        else:
            venv = ROOT / f".venv-{version}"
            try:
                ensure(machine[version], venv)
            except SetupFailed as error:
                fail(str(error))
            command = [str(venv_python(venv)), "-m", "pytest", "-m", "not full", "-q", *TESTS, *CHOSEN]
            print(f"+ {venv.name}/bin/python {' '.join(command[1:])}", flush=True)
            started = time.monotonic()
            code = subprocess.run(command, cwd=ROOT, env=clean_environ(), check=False).returncode
            verdict = "passed" if code == 0 else f"FAILED (exit {code})"
            results[version] = f"{verdict} in {time.monotonic() - started:.0f} s: {' '.join(TESTS)}"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return int(any("FAILED" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
