"""The domain is pure: what each of its files imports and calls, read from the source.

import-linter forbids a list of modules; this allows a list of names, so that a module nobody thought of
(or ``datetime.now``, inside a module that is fine otherwise) is seen too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import redrive.domain

DOMAIN = Path(redrive.domain.__file__).parent
FILES = sorted(DOMAIN.rglob("*.py"))
NAMES = {path.name for path in FILES}

WHOLE = {"__future__", "collections.abc", "dataclasses", "enum", "hashlib", "json", "math", "re", "typing"}
PARTS = {
    "datetime": {"UTC", "date", "datetime", "time", "timedelta", "timezone"},
    "functools": {"lru_cache"},
    "uuid": {"UUID"},
}
IMPURE_BUILTINS = {
    "open",
    "print",
    "input",
    "exec",
    "eval",
    "compile",
    "__import__",
    "breakpoint",
    "hash",
    "id",
}
IMPURE_METHODS = {"now", "today", "utcnow", "uuid1", "uuid4", "fromtimestamp", "astimezone"}


def imports(tree: ast.AST) -> list[tuple[str, str]]:
    """(module, name) for each thing imported, anywhere in the file; ``*`` for a whole module."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "*") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(module, alias.name) for alias in node.names]
    return found


def allowed(module: str, name: str) -> bool:
    inside = module == "redrive.errors" or module == "redrive.domain" or module.startswith("redrive.domain.")
    return inside or module in WHOLE or name in PARTS.get(module, set())


def impure_calls(tree: ast.AST) -> list[str]:
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
                calls.append(node.func.id)
            # ``astimezone(UTC)`` is arithmetic; ``astimezone()`` asks the machine for its zone.
            elif isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS and not node.args:
                calls.append(node.func.attr)
    return calls


def test_there_is_a_domain_to_look_at() -> None:
    assert {"identity.py", "policy.py", "decide.py", "envelope.py", "delivery.py", "outcome.py"} <= NAMES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_and_calls_are_pure(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), path.name)
    assert [entry for entry in imports(tree) if not allowed(*entry)] == []
    assert impure_calls(tree) == []
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Global)] or (
        path.name == "ports.py"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "import datetime",
        "from uuid import uuid4",
        "from random import random",
        "from redrive.ledger import sqlite",
        "from .. import app",
        "def f():\n    import socket",
    ],
)
def test_the_check_sees_an_impure_import(source: str) -> None:
    assert not all(allowed(*entry) for entry in imports(ast.parse(source)))


@pytest.mark.parametrize("source", ["datetime.now()", "open('x')", "x.astimezone()", "print(1)"])
def test_the_check_sees_an_impure_call(source: str) -> None:
    assert impure_calls(ast.parse(source))
