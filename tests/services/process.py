"""What every private service needs: a port, a user that is not root, and an end when its starter ends."""

from __future__ import annotations

import os
import pwd
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

COMMAND_TIMEOUT_S = 60.0
POLL_S = 0.01


class ServiceFailed(Exception):
    """A service could not be started or did not do as told; the message has its output."""


class Identity(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that make a child another user. Empty: stay who we are."""

    user: int
    group: int
    extra_groups: Sequence[int]


def service_identity() -> Identity:
    """Root gives its services to ``postgres``, else ``nobody``, since they refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServiceFailed("root needs a user postgres or nobody to run services as; this machine has neither")


def service_environment() -> dict[str, str]:
    """Our environment without what would redirect libpq or change what the server prints."""
    dropped = {name for name in os.environ if name.startswith(("PG", "LC_")) or name in ("LANG", "LANGUAGE")}
    return {name: value for name, value in os.environ.items() if name not in dropped} | {"LC_ALL": "C"}


def private_folder(prefix: str) -> Path:
    """A new folder with a short path (a Unix socket's is at most about 100 bytes), owned by the service's user."""
    base = "/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    give_away(folder)
    return folder


def give_away(folder: Path) -> None:
    """Make the service's user the owner of ``folder`` (not of what is in it)."""
    identity = service_identity()
    if identity:
        os.chown(folder, identity["user"], identity["group"])


def free_port() -> int:
    """A loopback port that nothing uses now, outside the range that outgoing connections are given.

    A port of that range can be lost to anybody's outgoing connection while its service restarts; worse, a
    client that keeps trying such a port while nothing listens on it can end up connected to itself.
    """
    lowest = 49_152
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        pass
    above = range(10_240, lowest) if lowest > 12_000 else range(61_000, 65_536)
    for port in random.SystemRandom().sample(above, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise ServiceFailed("200 random ports were all in use")


def run(command: Sequence[str | os.PathLike[str]], *, timeout_s: float = COMMAND_TIMEOUT_S) -> tuple[int, str]:
    """Exit code and combined output of a command run as the service's user."""
    with tempfile.TemporaryFile() as output:
        # A file and not a pipe: a server that outlives the command may keep its output open.
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=service_environment(),
                timeout=timeout_s,
                check=False,
                **service_identity(),
            )
        except subprocess.TimeoutExpired:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise ServiceFailed(f"{command[0]} was not done within {timeout_s:g} s:\n{text}") from None
        output.seek(0)
        return done.returncode, output.read().decode(errors="replace")


def wait_until(what: str, holds: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Ask ``holds`` again and again until it is true; `ServiceFailed` after ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise ServiceFailed(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


def accepts(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


class Guard:
    """A shell that outlives us only to clean up: it runs ``script`` when this process ends without `release`.

    A pipe tells it: its write end closes with us, also by SIGKILL. It has its own session, so that Ctrl-C
    does not reach it. ``arguments`` are ``$1`` and so on in the script.
    """

    def __init__(self, script: str, arguments: Sequence[str | os.PathLike[str]]) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r released && exit 0\n{script}", "guard", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=service_environment(),
            start_new_session=True,
            **service_identity(),
        )

    @property
    def pid(self) -> int:
        """The shell's process id."""
        return self._shell.pid

    def release(self) -> None:
        """Nothing is left to clean up. May be called again."""
        if self._shell.poll() is None:
            try:
                self._shell.communicate(b"released\n", timeout=10)
            except subprocess.TimeoutExpired:
                self._shell.kill()
                self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()


def configuration(settings: Mapping[str, str]) -> str:
    """``name = 'value'`` lines, as postgresql.conf reads them."""
    return "".join(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items())


def is_linux() -> bool:
    """Whether C.UTF-8 can be relied on, among others."""
    return sys.platform == "linux"
