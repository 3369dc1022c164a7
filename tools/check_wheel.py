"""The built wheel works by itself: built, installed into a fresh environment, used with src out of the way.

The wheel is built from the sdist, so that what an sdist leaves out is noticed too. Every file under src
must be in the wheel and nothing else of the tree; `py.typed`, the .sql files and the licence are named.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from environment import ROOT, SetupFailed, clean_environ, fail, make_venv, pip_install, venv_python
from tree import is_generated


def run(command: list[str], cwd: Path) -> str:
    """Run and return the output; leave with all of it when the command fails."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        shown = " ".join([Path(command[0]).name, *command[1:]])
        raise SystemExit(f"wheel: `{shown}` failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def missing_and_extra(names: set[str], root: Path) -> list[str]:
    """What a wheel with the entries ``names`` lacks of src, or has beyond it."""
    source = root / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not any(is_generated(part) for part in path.relative_to(source).parts)
    }
    got = {name for name in names if ".dist-info/" not in name}
    problems = [f"not in the wheel: {name}" for name in sorted(wanted - got)]
    problems += [f"in the wheel, not under src: {name}" for name in sorted(got - wanted)]
    if "redrive/py.typed" not in got:
        problems.append("no py.typed: type checkers would ignore the package's types")
    if not any(name.endswith(".sql") for name in got):
        problems.append("no .sql file: the ledger could not work")
    if not any(name.endswith("/LICENSE") for name in names):
        problems.append("no LICENSE")
    return problems


def main() -> int:
    """Exit status: 0 when the wheel is whole and works."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory(prefix="redrive-wheel-") as scratch:
        place = Path(scratch)
        run([sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(ROOT)], place)
        (wheel,) = (place / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            problems = missing_and_extra(set(archive.namelist()), ROOT)
        if problems:
            raise SystemExit("\n".join(f"wheel: {problem}" for problem in problems))
        venv, elsewhere = place / "venv", place / "elsewhere"
        elsewhere.mkdir()
        try:
            make_venv(Path(sys.executable), venv)
            pip_install(venv, [str(wheel)], cwd=elsewhere)
        except SetupFailed as error:
            fail(str(error))
        python = str(venv_python(venv))
        where = run([python, "-I", "-c", "import redrive; print(redrive.__file__)"], elsewhere).strip()
        if not Path(where).resolve().is_relative_to(venv.resolve()):
            raise SystemExit(f"wheel: redrive came from {where}, not from the wheel")
        said = run([str(venv / "bin" / "redrive"), "--version"], elsewhere)
        if version not in said:
            raise SystemExit(f"wheel: `redrive --version` said {said.strip()!r}; pyproject.toml says {version}")
        shutil.copy(ROOT / "tests" / "wheel_smoke.py", elsewhere)
        print(f"wheel: {run([python, '-I', 'wheel_smoke.py'], elsewhere).strip()}")
        print(run([python, "-I", str(ROOT / "tools" / "check_slim.py")], elsewhere).strip())
        print(f"wheel: ok, {wheel.name} is whole and works without src")
    return 0


if __name__ == "__main__":
    sys.exit(main())
