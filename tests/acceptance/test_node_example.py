"""The Node.js example, as a user runs it: npm install, node enqueue.mjs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.services.needs import required

from redrive import Conflict, Policy, Redrive

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "node"
INSTALL_S, RUN_S = 180, 30


@pytest.fixture(scope="module")
def example() -> Path:
    """The example with its package, in a folder that later runs find again. A missing Node.js fails."""
    npm, description = required("npm"), (EXAMPLE / "package.json").read_bytes()
    folder = ROOT / "build" / f"node-example-{hashlib.sha256(description).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            (made / "package.json").write_bytes(description)
            command = [str(npm), "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            if not folder.exists():  # another run may have been quicker
                made.rename(folder)
    shutil.copy(EXAMPLE / "enqueue.mjs", folder)
    return folder


def run(
    example: Path, database: str, *arguments: str, program: str = "enqueue.mjs"
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "DATABASE_URL": database}
    command = [str(required("Node.js")), program, *arguments]
    return subprocess.run(
        command, cwd=example, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )


def decisions(done: subprocess.CompletedProcess[str]) -> tuple[bool, list[str], Any]:
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    return said["committed"], [row["decided"] for row in (said["job"], said["event"], *said["batch"])], said


def test_the_node_example(example: Path, database: str) -> None:
    with Redrive(database) as app:
        app.init()
        committed, decided, first = decisions(run(example, database, "1001", "129.5"))
        assert (committed, decided) == (True, ["created"] * 4)
        committed, decided, again = decisions(run(example, database, "1001", "129.5"))
        assert (committed, decided) == (True, ["duplicate"] * 4)
        assert [again["job"]["delivery_id"], again["event"]["event_id"]] == [
            first["job"]["delivery_id"],
            first["event"]["event_id"],
        ]
        committed, decided, _ = decisions(run(example, database, "1001", "130"))
        assert (committed, decided) == (False, ["conflict", "conflict", "duplicate", "duplicate"])

        # Python names the same work alike.
        payload = {"order": 1001, "amount": 129.5}
        named = {"key": ("order", 1001), "tenant": "acme", "policy": Policy(), "allow_unknown": True}
        job = app.enqueue("invoice", payload, **named)  # type: ignore[arg-type]
        assert (job.delivery_id, job.created) == (first["job"]["delivery_id"], False)
        event = app.publish("order.paid", payload, event_id="order-1001-paid", tenant="acme")
        assert (event.event_id, event.created) == (first["event"]["event_id"], False)
        with pytest.raises(Conflict):
            app.enqueue("invoice", {}, **named)  # type: ignore[arg-type]
        with psycopg.connect(database) as conn:
            assert conn.execute("SELECT id, amount::text FROM orders").fetchall() == [(1001, "129.5")]
            assert conn.execute("SELECT handler, max_attempts FROM redrive.delivery ORDER BY seq").fetchall() == [
                ("invoice", 5),
                ("pack", 7),
                ("ship", 7),
            ]


def test_its_errors_say_what_to_do(example: Path, database: str) -> None:
    with Redrive(database) as app:
        app.init()
    done = run(example, database, "0.5")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "invalid input syntax for type bigint" in done.stderr
    source = (example / "enqueue.mjs").read_text()
    (example / "wrong.mjs").write_text(source.replace("'order.paid'", "'order paid'"))
    done = run(example, database, "1", program="wrong.mjs")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "redrive: event_type must be segments of ASCII letters, digits, _ and - joined by full stops",
        "for example order.paid",
    ]
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT count(*) FROM orders").fetchone() == (0,)
