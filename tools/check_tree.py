"""Nothing in the tree belongs to one machine or is left for another day.

Refuses paths of a particular machine, hosts of package registries, and markers of unfinished work. A
line that is about such text, and not an instance of it, says so with `tree: allow`.
"""

from __future__ import annotations

import re
import sys

from tree import project_files, report, root_argument, text_lines

# Written so that no pattern matches its own text.
RULES = {
    "a machine's path": r"(?<![\w.:/-])/(?:[w]ork|[r]oot|[U]sers/\w+|home/[a-z]\w*|tmp/[r]d)"
    r"(?:/|\b(?![-\w.]))",
    "a Windows path": r"\b[A-Z]:\\[U]sers\\",
    "a registry's host": r"\b(?:[p]ypi\.(?:org|python)|pythonhosted\.[o]rg|registry\.[n]pmjs"
    r"|[r]egistry\.yarnpkg|proxy\.[g]olang|index\.[c]rates|(?:extra-)?index-url[ =]|[t]rusted-host)",
    "an index address": r"https?://[^\s\"'<>)]+/[s]imple\b",
    "unfinished work": r"\b(?:[T]ODO|[F]IXME|[X]XX|[H]ACK)\b",
}
COMPILED = {name: re.compile(pattern) for name, pattern in RULES.items()}
ALLOWED = "tree: allow"


def main() -> int:
    """Exit status: 1 when a line breaks a rule."""
    root = root_argument(__doc__)
    files = project_files(root)
    problems = [
        f"{path.relative_to(root)}:{number}: {name}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(text_lines(path), 1)
        for name, pattern in COMPILED.items()
        if pattern.search(line) and ALLOWED not in line
    ]
    if not files:
        problems.append("no files: nothing was checked")
    return report("tree", problems, f"{len(files)} files")


if __name__ == "__main__":
    sys.exit(main())
