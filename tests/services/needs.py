"""What the tests and benchmarks need from the machine: PostgreSQL, pgbouncer, Node.js.

Standard library only and by itself, since `tools/setup --services` runs it as a script: without argument it
says what is missing, with ``--install`` it installs that where it can. Root on a machine with apt-get can;
elsewhere it says exactly what to install. Exit status 1 while something is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

OLDEST_POSTGRES = 13
SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
DROP_IN = Path("/etc/postgresql-common/createcluster.d/redrive-tests.conf")
POLICY = Path("/usr/sbin/policy-rc.d")


class Missing(Exception):
    """Something that the tests need is not on this machine; the message says what to install."""


@dataclass(frozen=True)
class Need:
    """A program: how to find it (None when absent), its Debian packages, what it is called elsewhere."""

    name: str
    find: Callable[[], Path | None]
    debian: tuple[str, ...]
    elsewhere: str


def _version_of(bindir: Path) -> tuple[int, ...]:
    """(15, 18) of a folder with PostgreSQL's server programs; () when it has none that run."""
    if not all((bindir / name).is_file() for name in ("postgres", "initdb", "pg_ctl")):
        return ()
    try:
        done = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    found = re.search(r"(\d+)(?:\.(\d+))?", done.stdout)
    return tuple(int(part) for part in found.groups() if part) if found else ()


def postgres_bin() -> Path | None:
    """The folder of PostgreSQL's server programs: Debian's newest, else those on PATH. None below 13."""
    debian = [(_version_of(folder), folder) for folder in Path("/usr/lib/postgresql").glob("*/bin")]
    found = max(debian, default=((), Path()))
    if not found[0]:
        places = [Path(initdb).resolve().parent] if (initdb := shutil.which("initdb")) else []
        if config := shutil.which("pg_config"):
            done = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
            places.append(Path(done.stdout.strip()))
        found = max(((_version_of(place), place) for place in places), default=((), Path()))
    return found[1] if found[0] >= (OLDEST_POSTGRES,) else None


def _program(name: str) -> Path | None:
    """``name`` on PATH or among the system's daemons, which a user's PATH may lack."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(SBIN))
    return Path(found) if found else None


def pgbouncer_program() -> Path | None:
    """pgbouncer's program."""
    return _program("pgbouncer")


NEEDS = [
    Need("PostgreSQL", postgres_bin, ("postgresql",), f"PostgreSQL {OLDEST_POSTGRES} or later with initdb on PATH"),
    Need("pgbouncer", pgbouncer_program, ("pgbouncer",), "pgbouncer on PATH"),
    # Where Node.js comes from another source than Debian it brings npm, and Debian's npm would not fit it.
    Need("Node.js", lambda: _program("node"), ("nodejs", "npm"), "Node.js 18 or later"),
    Need("npm", lambda: _program("npm"), ("npm",), "npm"),
]


def missing() -> list[Need]:
    """The needs that this machine does not meet."""
    return [need for need in NEEDS if need.find() is None]


def advice(absent: list[Need]) -> str:
    """What to install, for a person."""
    packages = " ".join(dict.fromkeys(package for need in absent for package in need.debian))
    return (
        f"the tests need {', '.join(need.name for need in absent)}, not found on this machine.\n"
        f"On Debian or Ubuntu, as root: apt-get install --no-install-recommends {packages}\n"
        f"Elsewhere: {'; '.join(need.elsewhere for need in absent)}."
    )


def required(need: str) -> Path:
    """Where the need of this name is. Raises `Missing`, never skips."""
    entry = next(entry for entry in NEEDS if entry.name == need)
    found = entry.find()
    if found is None:
        raise Missing(advice([entry]))
    return found


@contextmanager
def _present(path: Path, text: str, mode: int) -> Iterator[None]:
    """A file (and its folders) that exists only meanwhile; one that is there already is left alone."""
    if path.exists():
        yield
        return
    created = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        for folder in created:
            try:
                folder.rmdir()
            except OSError:
                break  # A package has put something there.


def apt_get(*arguments: str) -> int:
    """Run apt-get without questions; exit status."""
    print(f"services: apt-get {' '.join(arguments)}", flush=True)
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


def install(absent: list[Need]) -> None:
    """Install what is missing with apt-get. Raises `Missing` where that cannot be done or did not help.

    Debian's packages create and start a PostgreSQL on port 5432 and a pgbouncer on 6432. Neither is
    wanted: while they are installed, no cluster is created and no service is started.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(advice(absent))
    packages = list(dict.fromkeys(package for need in absent for package in need.debian))
    with ExitStack() as stack:
        stack.enter_context(_present(POLICY, "#!/bin/sh\nexit 101\n", 0o755))
        stack.enter_context(_present(DROP_IN, "create_main_cluster = false\n", 0o644))
        command = ("install", "-y", "--no-install-recommends", *packages)
        if apt_get(*command) != 0:
            # The lists are absent on a fresh machine, or too old to name what the mirror has.
            apt_get("update")
            apt_get(*command)
    if "pgbouncer" in packages and (systemctl := shutil.which("systemctl")):
        # The package asks for a start at the next boot.
        subprocess.run([systemctl, "--quiet", "disable", "pgbouncer"], capture_output=True, check=False)
    still = missing()
    if still:
        raise Missing("apt-get did not help: " + advice(still))


def main() -> int:
    """As a script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="install what is missing, where that is possible")
    options = parser.parse_args()
    absent = missing()
    try:
        if absent and options.install:
            install(absent)
        elif absent:
            raise Missing(advice(absent))
    except Missing as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
