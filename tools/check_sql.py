"""SQL lives in .sql files: no statement is written, joined or formatted in Python under src.

A statement in a string is invisible to the query-plan tests, and one in an f-string is an injection that
waits for its input. PRAGMAs and transaction words (BEGIN, COMMIT, SAVEPOINT) are the connection's own
business and allowed; SQLAlchemy Core builds statements without text.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from tree import project_files, report, root_argument

STATEMENT = re.compile(
    r"""^\s*(?:--[^\n]*\n\s*)*(?:
        SELECT\s | select\s.+\sfrom\s
      | WITH\s+(?:RECURSIVE\s+)?\w+\s*(?:\([^)]*\)\s*)?AS\b
      | INSERT\s+(?:OR\s+\w+\s+)?INTO\b | insert\s+into\s+\w+\s*[(v]
      | UPDATE\s+(?:OR\s+\w+\s+)?\S+\s+(?:AS\s+\w+\s+)?SET\b | update\s+\w+\s+set\s
      | DELETE\s+FROM\b | delete\s+from\s+\w+\s+where\s
      | REPLACE\s+INTO\b | VACUUM\b
      | (?:CREATE|DROP|ALTER)\s+(?:TEMP\w*\s+|UNIQUE\s+)?(?:TABLE|INDEX|TRIGGER|VIEW|SCHEMA|FUNCTION)\b
    )""",
    re.VERBOSE | re.DOTALL,
)
FORMATTED = re.compile(
    r"\b(?:SELECT\s|INSERT\s+(?:OR\s+\w+\s+)?INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|WHERE\s|ORDER\s+BY\b)"
)


def strings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """(line, text, is an f-string) of every string that is not a docstring."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        # A string that is a statement by itself is prose: a docstring.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            skipped.update(id(part) for part in node.values)
            yield node.lineno, "".join(map(str, parts)), True
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value, False


def main() -> int:
    """Exit status: 1 when Python under src holds a statement."""
    root = root_argument(__doc__)
    problems: list[str] = []
    sources = [p for p in project_files(root) if p.suffix == ".py" and p.is_relative_to(root / "src")]
    for path in sources:
        for line, text, formatted in strings(ast.parse(path.read_text(encoding="utf-8"))):
            if STATEMENT.search(text) or (formatted and FORMATTED.search(text)):
                shown = " ".join(text.split())[:80]
                problems.append(f"{path.relative_to(root)}:{line}: SQL in Python: {shown}")
    if not sources:
        problems.append("no Python under src: nothing was checked")
    return report("sql", problems, f"{len(sources)} Python files under src")


if __name__ == "__main__":
    sys.exit(main())
