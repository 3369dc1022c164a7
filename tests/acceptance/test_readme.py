"""What the README prints runs as printed."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(section: str, language: str) -> list[str]:
    """The fenced blocks of a section, by the section's heading."""
    body = README[README.index(f"\n## {section}\n") :]
    body = re.split(r"\n## ", body[1:].removeprefix("## "))[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    assert found, f"{section} has no {language}"
    return found


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An activated environment: ``python`` and ``redrive`` are this interpreter's."""
    path = tmp_path / "bin"
    path.mkdir()
    for name, arguments in (("python", ""), ("redrive", "-m redrive")):
        script = path / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    source = str(ROOT / "src")
    return kept | {"PATH": f"{path}:{kept['PATH']}", "PYTHONPATH": source, "COLUMNS": "200", "NO_COLOR": "1"}


def shell(script: str, folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", script],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_the_ten_lines_do_what_they_say(tmp_path: Path, environ: dict[str, str]) -> None:
    (code,) = blocks("In ten lines", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    (tmp_path / "example.py").write_text(code)
    printed = shell("python -W error example.py", tmp_path, environ)
    assert re.fullmatch(r"mail to Ada on attempt 2 of dlv_[0-9a-z]{26}\n", printed), printed


def test_the_move_to_a_server_is_another_url(tmp_path: Path, environ: dict[str, str], database: str) -> None:
    (code,) = blocks("In ten lines", "python")
    moved, replaced = re.subn(r'Redrive\("sqlite:[^"]*"\)', f'Redrive("{database}")', code)
    assert replaced == 1
    (tmp_path / "example.py").write_text(moved)
    printed = shell("python -W error example.py", tmp_path, environ)
    assert re.fullmatch(r"mail to Ada on attempt 2 of dlv_[0-9a-z]{26}\n", printed), printed
    assert list(tmp_path.glob("*.db")) == []


def test_the_quickstart_delivers_a_signed_webhook(tmp_path: Path, environ: dict[str, str]) -> None:
    section = "Send a signed webhook in five minutes"
    port = str(free_port())  # the only change: 8000 may be somebody else's here
    prepare, publish = (block.replace("8000", port) for block in blocks(section, "sh"))
    (code,) = (block.replace("8000", port) for block in blocks(section, "python"))
    (tmp_path / "receiver.py").write_text(code)
    shell(prepare, tmp_path, environ)
    receiver = subprocess.Popen(
        [sys.executable, "receiver.py"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(receiver, int(port))
        printed = shell(publish, tmp_path, environ)
        # A request that is not signed with the secret is refused by the receiver as printed.
        assert post_unsigned(int(port)) == 401
    finally:
        receiver.terminate()
        out, errors = receiver.communicate(timeout=10)
    (delivery,) = set(re.findall(r"dlv_[0-9a-z]{26}", printed))
    assert out == f'verified: {delivery} {{"order": "A-1", "total_cents": 4200}}\n', errors
    assert re.search(rf"{delivery}.*delivered|delivered.*{delivery}", printed), printed
    timeline = shell(f"redrive delivery timeline {delivery}", tmp_path, environ)
    assert "delivered" in timeline
    assert "204" in timeline


def wait_for(receiver: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and receiver.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the receiver does not listen")


def post_unsigned(port: int) -> int:
    head = b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(head)
        return int(sock.makefile("rb").readline().split()[1])


def test_the_two_commands_are_there() -> None:
    commands = re.findall(r"^make ([a-z-]+)", "".join(blocks("Two commands", "")), re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in (*commands, "setup"):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert len(links) >= 6
    assert [target for target in links if not (ROOT / target).is_file()] == []


def test_it_never_promises_exactly_once() -> None:
    assert "at least once" in README.lower()
    promised = README[README.index("## What it promises") : README.index("What it does not promise")]
    assert "exactly" not in promised.lower()
    assert "exactly once" not in README[: README.index("What it does not promise")].lower()
