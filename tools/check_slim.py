"""`import redrive` is slim: it loads no command line, web, broker, HTTP client or unused driver module.

A web process that only enqueues should not pay for the sender, and an optional package that is missing
should not break an import that never needed it. Each look happens in a fresh interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys

CLI = ["typer", "click", "rich", "redrive.cli"]
WEB = ["fastapi", "starlette", "uvicorn", "jinja2", "redrive.web"]
BROKERS = ["redis", "aio_pika", "pika", "aiobotocore", "boto3", "botocore"]
DRIVERS = ["sqlalchemy", "aiosqlite", "psycopg", "psycopg2", "asyncpg", "greenlet", "django"]
CLIENTS = ["httptools", "uvloop", "aiohttp", "httpx", "requests", "urllib3", "http.client", "urllib.request"]
HEAVY = ["cryptography", "jsonschema", "tzdata", "pytest", "hypothesis"]
NEVER = [*CLI, *WEB, *BROKERS, *DRIVERS, *CLIENTS, *HEAVY]

# What is done in the fresh interpreter -> what may not have been loaded by it. Until an application names
# a ledger, no driver is in use, the standard library's included.
LOOKS = {
    "import redrive": [*NEVER, "sqlite3"],
    "import redrive; redrive.Redrive": NEVER,
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has beyond its own after ``statement``."""
    script = (
        "import sys, json; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"slim: `{statement}` failed:\n{done.stderr}")
    return set(json.loads(done.stdout.splitlines()[-1]))


def unwanted(modules: set[str], forbidden: list[str]) -> list[str]:
    """Which of ``forbidden`` (or a module inside one) are among ``modules``."""
    return [name for name in forbidden if any(m == name or m.startswith(f"{name}.") for m in modules)]


def main() -> int:
    """Exit status: 1 when an import loads what it should not."""
    failed = False
    for statement, forbidden in LOOKS.items():
        modules = loaded_by(statement)
        if "redrive" not in modules:
            raise SystemExit("slim: redrive was not loaded by its own import: nothing was checked")
        found = unwanted(modules, forbidden)
        failed = failed or bool(found)
        verdict = (
            f"loads {', '.join(found)}" if found else f"ok, {len(modules)} modules, none of {len(forbidden)} heavy"
        )
        print(f"slim: `{statement}`: {verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
