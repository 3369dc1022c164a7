"""Which tests exist, read from the files without running them.

Knows module-level tests, test classes with the tests they inherit (a conformance suite's too, from
another module), tests imported by name or by star, and marks on a test, its class or its module.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Module:
    """One parsed test file: its tests, its classes' tests, and the marks on each."""

    tests: dict[str, set[str]] = field(default_factory=dict)
    classes: dict[str, dict[str, set[str]]] = field(default_factory=dict)


class TestIndex:
    """Test IDs of a tree, read on demand. ``path::name`` or ``path::Class::name``; parameters are ignored."""

    __test__ = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[Path, Module] = {}

    def marks(self, test_id: str) -> set[str] | None:
        """The names of the pytest marks on a test; None when there is no such test."""
        path, _, name = test_id.partition("::")
        file = self.root / path
        if not file.is_file() or not file.name.startswith("test_"):
            return None
        module = self._module(file)
        parts = name.split("[", 1)[0].split("::")
        if len(parts) == 1:
            return module.tests.get(parts[0])
        if len(parts) == 2 and parts[0].startswith("Test"):
            return module.classes.get(parts[0], {}).get(parts[1])
        return None

    def _module(self, file: Path) -> Module:
        if file not in self._modules:
            self._modules[file] = Module()  # first, so that a circular import ends
            self._read(file, self._modules[file])
        return self._modules[file]

    def _read(self, file: Path, module: Module) -> None:
        body = _flatten(ast.parse(file.read_text(encoding="utf-8")).body)
        everywhere = _pytestmark(body)
        for node in body:
            if isinstance(node, ast.ImportFrom):
                self._import(file, node, module)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                module.tests[node.name] = _mark_names(node.decorator_list) | everywhere
            elif isinstance(node, ast.ClassDef):
                self._class(node, module, everywhere)
        for tests in module.classes.values():
            for name, marks_of in tests.items():
                tests[name] = marks_of | everywhere

    def _import(self, file: Path, node: ast.ImportFrom, module: Module) -> None:
        source = self._find(file, node)
        other = self._module(source) if source is not None else Module()
        for alias in node.names:
            whole = self._find(file, ast.ImportFrom(f"{node.module or ''}.{alias.name}".lstrip("."), [], node.level))
            if whole is not None:
                # `from tests.contract import suite`: its classes can be bases here, and are not tests here.
                bases = self._module(whole).classes.items()
                module.classes.update({name: dict(tests) for name, tests in bases if not name.startswith("Test")})
            elif alias.name == "*":
                module.tests.update(other.tests)
                module.classes.update({name: dict(tests) for name, tests in other.classes.items()})
            elif alias.name in other.tests:
                module.tests[alias.asname or alias.name] = other.tests[alias.name]
            elif alias.name in other.classes:
                module.classes[alias.asname or alias.name] = dict(other.classes[alias.name])

    def _find(self, file: Path, node: ast.ImportFrom) -> Path | None:
        start = self.root if node.level == 0 else file.parents[node.level - 1]
        target = start.joinpath(*(node.module or "").split("."))
        for candidate in (target.with_suffix(".py"), target / "__init__.py"):
            if candidate.is_file() and candidate.is_relative_to(self.root / "tests"):
                return candidate
        return None

    @staticmethod
    def _class(node: ast.ClassDef, module: Module, everywhere: set[str]) -> None:
        of_class = _mark_names(node.decorator_list) | _pytestmark(node.body) | everywhere
        tests: dict[str, set[str]] = {}
        for base in reversed(node.bases):
            name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            tests.update({test: marks | of_class for test, marks in module.classes.get(name, {}).items()})
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith("test"):
                tests[item.name] = _mark_names(item.decorator_list) | of_class
        module.classes[node.name] = tests


def _flatten(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements, those under a module-level `if` or `try` included."""
    flat: list[ast.stmt] = []
    for node in body:
        flat.append(node)
        if isinstance(node, ast.If | ast.Try):
            flat.extend(_flatten([*node.body, *node.orelse]))
    return flat


def _pytestmark(body: list[ast.stmt]) -> set[str]:
    """The marks that ``pytestmark = ...`` puts on everything in a module or a class."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "pytestmark" for t in node.targets):
            found |= _mark_names(node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value])
    return found


def _mark_names(expressions: list[ast.expr]) -> set[str]:
    """``pytest.mark.NAME`` and ``mark.NAME``, called or not."""
    names: set[str] = set()
    for expression in expressions:
        target = expression.func if isinstance(expression, ast.Call) else expression
        if isinstance(target, ast.Attribute):
            holder = target.value
            if "mark" in (getattr(holder, "attr", ""), getattr(holder, "id", "")):
                names.add(target.attr)
    return names
