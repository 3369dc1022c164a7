"""Plants each fault of the registry in a copy of the tree and expects the named tests to notice.

    tools/run_mutants.py                 every mutant
    tools/run_mutants.py --quick         those marked quick
    tools/run_mutants.py NAME NAME       these
    tools/run_mutants.py --list          says what there is, runs nothing

First the named tests must pass in the unchanged copy: a test that is red anyway notices nothing. A mutant
is killed when a test fails or runs out of time. One that survives, or that merely breaks the import or the
collection of its tests, makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import clean_environ
from known_tests import TestIndex
from tree import is_generated

from mutants import Mutant, load

ROOT = Path(__file__).resolve().parent.parent


def copy_tree(root: Path, target: Path) -> None:
    """The project without what tools generate. Tests then import the copy, not the original."""
    shutil.copytree(root, target, symlinks=True, ignore=lambda _, names: [n for n in names if is_generated(n)])


def run_tests(tree: Path, tests: list[str], timeout: float) -> tuple[int | None, str]:
    """pytest's exit code (None when it ran out of time) and its output."""
    environ = clean_environ()
    environ["PYTHONPATH"] = str(tree / "src")
    # A mutant may keep the file's size and second: stale bytecode would then hide it.
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output
    return process.returncode, output


def check_baseline(tree: Path, mutants: list[Mutant], timeout: float) -> None:
    """The named tests pass before anything is planted, and they test the copy."""
    probe = [sys.executable, "-c", "import redrive; print(redrive.__file__)"]
    environ = {**clean_environ(), "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(probe, cwd=tree, env=environ, capture_output=True, text=True, check=False)
    if not Path(done.stdout.strip() or "/").is_relative_to(tree):
        raise SystemExit(f"mutants: the copy of redrive is not what would be tested: {done.stdout}{done.stderr}")
    code, output = run_tests(tree, sorted({test for mutant in mutants for test in mutant.tests}), timeout)
    if code != 0:
        raise SystemExit(f"mutants: the named tests do not pass without a mutant:\n{output}")


def verdict(tree: Path, mutant: Mutant, timeout: float) -> tuple[str, str]:
    """killed, survived or broken; and pytest's output."""
    file = tree / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.apply(original), encoding="utf-8")
    try:
        code, output = run_tests(tree, list(mutant.tests), timeout)
    finally:
        file.write_text(original, encoding="utf-8")
    return {None: "killed (time)", 0: "SURVIVED", 1: "killed"}.get(code, "BROKEN"), output


def choose(mutants: list[Mutant], names: list[str], *, quick: bool) -> list[Mutant]:
    """Those asked for. Leaves with a message on an unknown name."""
    unknown = set(names) - {mutant.name for mutant in mutants}
    if unknown:
        raise SystemExit(f"mutants: no mutant named {', '.join(sorted(unknown))}")
    return [m for m in mutants if (not names or m.name in names) and (not quick or m.quick)]


def main() -> int:
    """Exit status: 0 when every chosen mutant was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the tests of one mutant")
    options = parser.parse_args()
    root = options.root.resolve()
    registry, problems = load(root, TestIndex(root))
    if problems:
        raise SystemExit("\n".join(f"mutants: {problem}" for problem in problems))
    mutants = choose(registry, options.names, quick=options.quick)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<44} {'quick' if mutant.quick else '     '} {mutant.file}")
        return 0
    if not mutants:
        raise SystemExit("mutants: none to run: nothing was checked")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="redrive-mutants-") as scratch:
        tree = Path(scratch).resolve() / "tree"
        copy_tree(root, tree)
        check_baseline(tree, mutants, max(600.0, options.timeout))
        for mutant in mutants:
            started = time.monotonic()
            result, output = verdict(tree, mutant, options.timeout)
            print(f"{mutant.name:<44} {result:<14} {time.monotonic() - started:5.1f} s", flush=True)
            if not result.startswith("killed"):
                bad += 1
                print("\n".join(f"    {line}" for line in output.strip().splitlines()[-12:]))
    print(f"mutants: {len(mutants) - bad} of {len(mutants)} killed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
