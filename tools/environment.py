"""Makes virtual environments: creates one, installs what pyproject.toml says, remembers that it did.

Standard library only, since it runs before anything is installed. As a script it serves `tools/setup`;
`check_wheel.py` and `other_versions.py` use its functions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
STAMP = "redrive-setup.json"
# A script of its own, since the tests ask it too; the sdist has it, and not this folder.
SERVICES = ROOT / "tests" / "services" / "needs.py"
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]


class SetupFailed(Exception):
    """The environment could not be made; the message says why and what to do."""


def venv_python(venv: Path) -> Path:
    """The interpreter inside ``venv``."""
    return venv / "bin" / "python"


def clean_environ() -> dict[str, str]:
    """Our environment without what would leak other packages or interpreters into a child Python."""
    dropped = {
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "__PYVENV_LAUNCHER__",
    }
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _run(command: list[str], *, cwd: Path = ROOT) -> tuple[int, str]:
    """Exit code and combined output, with the places packages come from taken out."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    text = re.sub(r"(?m)^.*Looking in (?:indexes|links):.*\n?", "", done.stdout)
    text = re.sub(r"https?://[^\s'\")]+", "<package index>", text)
    return done.returncode, re.sub(r"host='[^']*'", "host=<package index>", text)


def _works(python: Path) -> bool:
    return python.exists() and _run([str(python), "-c", "import pip"])[0] == 0


def _version_of(python: Path) -> str:
    return _run([str(python), "-I", "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))"])[1].strip()


def make_venv(base: Path, venv: Path) -> None:
    """Create ``venv`` from the interpreter ``base``, with pip in it.

    Debian splits `ensurepip` into python3-venv. Where it is missing, pip of the base interpreter fills
    the gap; failing that, root on a machine with apt-get installs the package.
    """
    if venv.exists():
        shutil.rmtree(venv)
    code, first = _run([str(base), "-I", "-m", "venv", str(venv)])
    if code == 0 and _works(venv_python(venv)):
        return
    if _borrow_pip(base, venv):
        return
    if os.geteuid() == 0 and shutil.which("apt-get") and base.resolve().is_relative_to("/usr/bin"):
        package = f"{base.resolve().name}-venv"
        print(f"setup: this Python has no ensurepip; installing {package} with apt-get", flush=True)
        for arguments in (["install"], ["update"], ["install"]):
            verb = arguments[0]
            names = [package] if verb == "install" else []
            env_command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", verb, *names]
            if _run(env_command)[0] == 0 and verb == "install":
                break
        shutil.rmtree(venv, ignore_errors=True)
        code, first = _run([str(base), "-I", "-m", "venv", str(venv)])
        if code == 0 and _works(venv_python(venv)):
            return
    shutil.rmtree(venv, ignore_errors=True)
    raise SetupFailed(
        f"{base} cannot create a virtual environment with pip in it.\n{_tail(first)}\n"
        "On Debian or Ubuntu: apt-get install python3-venv (as root), then run this again."
    )


def _borrow_pip(base: Path, venv: Path) -> bool:
    shutil.rmtree(venv, ignore_errors=True)
    if _run([str(base), "-I", "-m", "venv", "--without-pip", str(venv)])[0] != 0:
        return False
    borrowed = [str(base), "-I", *PIP, "--python", str(venv_python(venv)), "install", "pip"]
    return _run(borrowed)[0] == 0 and _works(venv_python(venv))


def pip_install(venv: Path, arguments: list[str], *, cwd: Path = ROOT) -> None:
    """``pip install`` in ``venv``, tried twice, since a network may fail once."""
    command = [str(venv_python(venv)), *PIP, "install", *arguments]
    for attempt in (1, 2):
        code, text = _run(command, cwd=cwd)
        if code == 0:
            return
        if attempt == 1:
            print("setup: pip failed; trying once more", flush=True)
            time.sleep(1)
    raise SetupFailed(f"pip could not install {' '.join(arguments)} into {venv.name}:\n{_tail(text)}")


def _tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def dev_group(pyproject: dict[str, Any], name: str = "dev") -> list[str]:
    """The requirements of a dependency group (PEP 735), so that no particular pip version is needed."""
    found: list[str] = []
    for entry in pyproject["dependency-groups"][name]:
        found.extend(dev_group(pyproject, entry["include-group"]) if isinstance(entry, dict) else [entry])
    return found


def fingerprint(pyproject: dict[str, Any], python: str) -> str:
    """Changes exactly when an installed environment could be out of date (not when a lint rule does)."""
    relevant = {key: pyproject.get(key) for key in ("build-system", "project", "dependency-groups")}
    text = json.dumps([relevant, python, str(ROOT)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


CONTENTS = {
    "runtime": "the package",
    "dev": "the package and its development tools",
    "bench": "the package, its development tools and the peers that it is measured against",
}
"""What an environment may hold, each more than the one before."""


def ensure(base: Path, venv: Path, *, runtime_only: bool = False, bench: bool = False) -> bool:
    """Bring ``venv`` up to date. False when there was nothing to do. Raises `SetupFailed`."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = "runtime" if runtime_only else "bench" if bench else "dev"
    enough = list(CONTENTS)[list(CONTENTS).index(wanted) :]
    stamp = venv / STAMP
    python = venv_python(venv)
    if _works(python):
        print_of = fingerprint(pyproject, _version_of(python))
        done = json.loads(stamp.read_text()) if stamp.exists() else {}
        if print_of in map(done.get, enough):
            return False
    else:
        make_venv(base, venv)
        print_of, done = fingerprint(pyproject, _version_of(python)), {}
    print(f"setup: installing {CONTENTS[wanted]} into {venv.name} (Python {_version_of(python)})", flush=True)
    stamp.unlink(missing_ok=True)
    extras = [] if runtime_only else dev_group(pyproject, wanted)
    pip_install(venv, ["--editable", "." if runtime_only else ".[asyncio,postgres]", *extras])
    done[wanted] = print_of
    with tempfile.NamedTemporaryFile("w", dir=venv, delete=False) as handle:
        json.dump(done, handle)
    Path(handle.name).replace(stamp)
    return True


def fail(message: str) -> NoReturn:
    """Say what went wrong and leave."""
    print(f"setup: {message}", file=sys.stderr)
    raise SystemExit(1)


def main() -> None:
    """`tools/setup`."""
    parser = argparse.ArgumentParser(prog="tools/setup", description=__doc__)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--runtime", action="store_true", help="only what a user of the package gets")
    amount.add_argument("--services", action="store_true", help="PostgreSQL and the other services of the tests too")
    amount.add_argument("--bench", action="store_true", help="those, and the peers of the benchmarks")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    try:
        changed = ensure(Path(sys.executable), options.venv, runtime_only=options.runtime, bench=options.bench)
    except SetupFailed as error:
        fail(str(error))
    services = [sys.executable, "-I", str(SERVICES), "--install"]
    if (options.services or options.bench) and subprocess.run(services, check=False).returncode:
        raise SystemExit(1)
    if changed:
        print(f"setup: ready. Run things with {options.venv.name}/bin/python", flush=True)


if __name__ == "__main__":
    main()
