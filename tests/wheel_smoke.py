"""Run by `tools/check_wheel.py` with the installed wheel: a delivery is enqueued, executed and closed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from redrive import Redrive


def main() -> None:
    """Raises when anything is not as promised."""
    with tempfile.TemporaryDirectory() as folder:
        app = Redrive(f"sqlite:///{Path(folder) / 'redrive.db'}")
        seen: list[object] = []

        @app.handler("echo")
        async def echo(ctx: object, payload: object) -> None:
            seen.append(payload)

        app.init()
        app.enqueue("echo", {"n": 1}, key="k", tenant="t")
        app.enqueue("echo", {"n": 1}, key="k", tenant="t")
        app.run(until_idle=True)
        if seen != [{"n": 1}]:
            raise SystemExit(f"one delivery was enqueued twice; the handler saw {seen!r}")
    print("enqueued twice, delivered once")


if __name__ == "__main__":
    main()
