"""Two releases on one ledger: an earlier one, built from its commit, beside this one; this one and its successor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import Ran, finished, until

import redrive
from redrive import Policy, Redrive, __version__
from redrive.errors import LedgerVersion

ROOT = Path(__file__).parents[2]
APP = """
import os, pathlib, time
from redrive import Policy, Redrive, __version__
from redrive.worker.settings import WorkerSettings

WHO = os.environ["WHO"]
app = Redrive({url!r}, worker=WorkerSettings(slots=1, lease_s=1.0, reap_s=0.05, poll_s=0.1))
QUICK = Policy(max_attempts=3, base=1000, cap=10000)


@app.handler("meet", policy=QUICK)
def meet(ctx, payload):
    # One slot each: both of two jobs run at once only if each release has one of them.
    pathlib.Path("met-" + WHO).write_text(__version__)
    end = time.monotonic() + 40
    while len(list(pathlib.Path().glob("met-*"))) < 2:
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


@app.handler("work", policy=QUICK)
def work(ctx, payload):
    with open("ran", "a") as file:
        file.write(f"{{WHO}} {{payload}}\\n")


if WHO == "new":
    app.handler("added", policy=QUICK)(work)
"""
POLICY = Policy(max_attempts=3, base=1000, cap=10000)
KEYS = ("a", 1, "1", ("a", 1), ("a", "1"), "\u00e9", "e\u0301", (0, True), -(2**63))
IDENTITIES = f"""
import json, sys
sys.path.insert(0, ".")
from shop import app
jobs = [app.enqueue("work", n, key=key) for n, key in enumerate({KEYS!a})]
print(json.dumps([[job.delivery_id, job.created] for job in jobs]))
app.close()
"""


def enqueue(app: Redrive, handler: str, payload: object) -> tuple[str, bool]:
    """By this release, in this process: (delivery ID, whether it was new); the payload is the key, too."""
    with app:
        job = app.enqueue(handler, payload, key=str(payload), policy=POLICY, allow_unknown=True)
    return job.delivery_id, job.created


class Release:
    """A release of redrive as one host has it."""

    def __init__(self, who: str, python: Path, folder: Path, path: str | None = None) -> None:
        self.who = who
        self._python = python
        self._folder = folder
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("REDRIVE_", "PYTHON"))}
        self._env = {**clean, "WHO": who} | ({} if path is None else {"PYTHONPATH": path})
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(self._python), "-P", "-m", "redrive", *arguments],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def run(self, *arguments: str) -> Ran:
        return finished(self.start(*arguments), 40)

    def ok(self, *arguments: str) -> Ran:
        ran = self.run(*arguments)
        assert ran.code == 0, (self.who, arguments, ran)
        return ran

    def enqueue(self, handler: str, payload: str) -> tuple[str, bool]:
        """(delivery ID, whether it was new); the payload is the key, too."""
        shown = self.ok("enqueue", handler, payload, "--key", payload, "-o", "json").json
        return shown["delivery"], shown["created"]

    def identities(self) -> list[list[object]]:
        """Enqueue work under keys of every kind: [delivery ID, whether it was new] of each."""
        done = subprocess.run(
            [str(self._python), "-P", "-c", IDENTITIES],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
            timeout=40,
        )
        found: list[list[object]] = json.loads(done.stdout)
        return found

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def this(folder: Path, who: str = "new") -> Release:
    return Release(who, Path(sys.executable), folder, str(Path(redrive.__file__).parents[1]))


def build(place: Path, release: dict[str, str]) -> Path:
    """A release's wheel, from its commit."""
    commit = release["commit"]
    known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True)
    if known.returncode != 0:
        shallow = subprocess.run(
            ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True
        )
        why = "this clone is shallow: fetch its history (git fetch --unshallow; in CI: fetch-depth: 0)"
        if shallow.stdout.strip() != "true":
            why = f"git says: {known.stderr.strip()}"
        pytest.fail(f"the commit of release {release['version']} ({commit}) is not in this repository; {why}")
    with (place / "source.tar").open("wb") as archive:
        subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=archive, timeout=60)
    with tarfile.open(place / "source.tar") as archive:
        archive.extractall(place / "source", filter="data")
    alone = ["--no-isolation"] if find_spec("hatchling") else []
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", *alone, "--outdir", str(place), str(place / "source")],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = place.glob("*.whl")
    return wheel


RELEASES = tomllib.loads((ROOT / "releases.toml").read_text(encoding="utf-8"))["release"]


@pytest.fixture(scope="module", params=RELEASES, ids=lambda release: release["version"])
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(version, Python) of each earlier release, in an environment of its own with this one's dependencies."""
    version: str = request.param["version"]
    place = tmp_path_factory.mktemp("release")
    wheel = build(place, request.param)
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    python = venv / "bin" / "python"
    (packages,) = (venv / "lib").glob("python*/site-packages")
    shutil.unpack_archive(wheel, packages, "zip")
    # After the environment's own packages, so that redrive is the wheel's.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    said = subprocess.run(
        [str(python), "-I", "-c", "import redrive; print(redrive.__version__, redrive.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    assert said[0] == version
    assert Path(said[1]).is_relative_to(packages)
    return version, python


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "redrive.toml").write_text('app = "shop:app"\n')
    (tmp_path / "shop.py").write_text(APP.format(url="sqlite:///ledger.db"))
    return tmp_path


@pytest.fixture
def old(earlier: tuple[str, Path], folder: Path) -> Iterator[Release]:
    release = Release("old", earlier[1], folder)
    yield release
    release.stop()


@pytest.fixture
def new(folder: Path) -> Iterator[Release]:
    release = this(folder)
    yield release
    release.stop()


def test_an_earlier_release_and_this_one_work_on_one_ledger(
    earlier: tuple[str, Path], old: Release, new: Release, folder: Path
) -> None:
    old.ok("init", "-q")
    here = Redrive(f"sqlite:///{folder / 'ledger.db'}")
    before = old.identities()
    assert [created for _, created in before] == [True] * len(KEYS)
    meeting = old.start("worker", "-q")
    old.enqueue("meet", '"first"')
    until(lambda: (folder / "met-old").exists())
    # The first phase, under the running worker of the earlier release.
    new.ok("migrate", "-q")
    assert enqueue(here, "meet", "second")[1]
    fresh = new.start("worker", "-q")
    until(lambda: (folder / "met-new").exists())
    assert (folder / "met-old").read_text() == earlier[0]
    assert (folder / "met-new").read_text() == __version__
    # The identities, and what each decides of the other's.
    with here:
        jobs = [here.enqueue("work", n, key=key, policy=POLICY, allow_unknown=True) for n, key in enumerate(KEYS)]
        assert [[job.delivery_id, job.created] for job in jobs] == [[delivery, False] for delivery, _ in before]
        assert len({delivery for delivery, _ in before}) == len(KEYS)
        there = here.enqueue("work", 100, key="100", policy=POLICY, allow_unknown=True).delivery_id
    assert old.enqueue("work", "100") == (there, False)
    # What only the new release executes waits for it.
    fresh.terminate()
    assert finished(fresh).code == 0
    added = enqueue(here, "added", 201)[0]
    old.enqueue("work", "200")
    until(lambda: "old 200\n" in (folder / "ran").read_text())
    with here:
        view = here.operations.show(added)
    assert (view.disposition, view.attempt, view.deferrals) == ("waiting", 0, 0)
    meeting.terminate()
    assert finished(meeting).code == 0
    new.ok("worker", "--until-idle", "-q")
    ran = [line.split(" ", 1) for line in (folder / "ran").read_text().splitlines()]
    assert sorted(int(payload) for _, payload in ran) == [*range(len(KEYS)), 100, 200, 201]
    assert ["new", "201"] in ran
    counts = old.ok("status", "-o", "json").json["dispositions"]
    assert {word: count["count"] for word, count in counts.items() if count["count"]} == {"delivered": len(ran) + 2}
    for release in (old, new):
        release.ok("verify", "-q")


def test_an_earlier_release_refuses_a_schema_that_a_later_one_broke(old: Release, new: Release, folder: Path) -> None:
    from tests.acceptance.fleet_support import plant_step

    old.ok("init", "-q")
    new.ok("migrate", "-q")
    plant_step(f"sqlite:///{folder / 'ledger.db'}", 900, breaking=True)
    for release in (old, new):
        refused = release.run("worker")
        assert refused.code == 1
        assert "step 900 is not compatible with this release" in refused.err
        assert "upgrade redrive" in refused.err
        assert "Ctrl-C" not in refused.err, "it did not begin"


# --- this release and its successor, on PostgreSQL ---------------------------------------------------------

EXPAND = "CREATE TABLE {schema}.later (one integer NOT NULL PRIMARY KEY);\n"
CONTRACT = "-- breaking\nALTER TABLE {schema}.later ADD COLUMN two integer;\n"
NEXT = "9.0.0"


@pytest.fixture
def successor(tmp_path: Path, folder: Path) -> Iterator[Release]:
    """A copy of this release with a later version's name and two more steps of the schema."""
    copy = tmp_path / "successor" / "redrive"
    shutil.copytree(Path(redrive.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    init = copy / "__init__.py"
    text = init.read_text()
    assert text.count(f'__version__ = "{__version__}"') == 1
    init.write_text(text.replace(f'__version__ = "{__version__}"', f'__version__ = "{NEXT}"'))
    steps = copy / "ledger" / "postgres" / "migrations"
    last = max(int(step.name[:4]) for step in steps.glob("*.sql"))
    (steps / f"{last + 1:04}_later.sql").write_text(EXPAND)
    (steps / f"{last + 2:04}_no_way_back.sql").write_text(CONTRACT)
    release = Release("new", Path(sys.executable), folder, str(copy.parent))
    yield release
    release.stop()


def test_a_fleet_on_postgresql_is_deployed_in_two_phases(folder: Path, successor: Release, database: str) -> None:
    secret = "hunter2-of-the-fleet"
    url = database.replace("postgres@", f"postgres:{secret}@")
    (folder / "shop.py").write_text(APP.format(url=url))
    (folder / "redrive.toml").write_text(f'app = "shop:app"\nledger = "{url}"\n')
    today, here = this(folder, "old"), Redrive(url)
    said: list[str] = []
    try:
        here.init()
        running = today.start("worker")
        enqueue(here, "meet", "first")
        until(lambda: (folder / "met-old").exists())
        said.append(successor.ok("migrate").out)
        assert "later" in said[-1]
        assert "no_way_back" not in said[-1]
        newer = successor.start("worker")
        enqueue(here, "meet", "second")
        until(lambda: (folder / "met-new").exists())
        assert [(folder / f"met-{who}").read_text() for who in ("old", "new")] == [__version__, NEXT]
        there = enqueue(here, "work", 1)[0]
        assert successor.enqueue("work", "1") == (there, False)
        with here:
            assert [worker.version for worker in here.operations.workers()] == [NEXT, __version__]
        items = successor.ok("envelope", "list", "-o", "json").json["items"]
        served = {item["handler"]: item["worker_versions"] for item in items}
        assert (served["work"], served["added"]) == ([__version__, NEXT], [NEXT])
        # The second phase is refused while the earlier release works, and forced it makes that end in good order.
        refused = successor.run("migrate", "--finish")
        said.append(refused.err)
        assert refused.code == 6
        assert __version__ in refused.err
        successor.ok("migrate", "--finish", "--force", "-q")
        ended = finished(running)
        said += [ended.out, ended.err]
        assert ended.code == 1
        assert "is not compatible with this release" in ended.err
        assert "upgrade redrive on this host" in ended.err
        assert newer.poll() is None
        with here, pytest.raises(LedgerVersion, match="is not compatible with this release") as caught:
            here.operations.due()
        said.append(str(caught.value))
        successor.enqueue("work", "2")
        until(lambda: "new 2\n" in (folder / "ran").read_text())
        newer.terminate()
        ended = finished(newer)
        said += [ended.out, ended.err, successor.ok("verify").out]
        assert ended.code == 0
    finally:
        today.stop()
    assert not any(secret in text for text in said)
