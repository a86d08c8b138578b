"""Runs a model's code in a child process that can do little and not for long.

The one place where data is run, and what confines it: an own process group, no environment, an empty folder,
limits of CPU time, memory, file size and open files, a deadline, and code that imports a few pure modules at
most. It is a fence for a measurement, not a jail for an attacker.
"""

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

DEADLINE_S = 10.0
_CONFINE = """import resource as _r
for _kind, _limit in (
    (_r.RLIMIT_CPU, 4), (_r.RLIMIT_AS, 1 << 29), (_r.RLIMIT_FSIZE, 0), (_r.RLIMIT_NOFILE, 16),
    (_r.RLIMIT_CORE, 0),
):
    _r.setrlimit(_kind, (_limit, _limit))
del _r, _kind, _limit
"""
"""Run by the child before the model's code: hard limits, which it cannot raise again."""
_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.S)
_DOORS = frozenset({"open", "exec", "eval", "compile", "__import__", "__builtins__", "getattr"})
_ALLOWED_IMPORTS = frozenset({"math", "re", "itertools", "functools", "collections", "string", "typing"})


def passes(answer: str, cases: Sequence[tuple[str, str]]) -> bool:
    """Say whether the code in `answer` makes every case (expression, expected value) true.

    Code that does not parse, or imports anything but a few pure modules, is wrong without being run.
    """
    code = code_in(answer)
    if not _is_harmless(code):
        return False
    asserts = "\n".join(f"assert ({expression}) == ({expected})" for expression, expected in cases)
    command = [sys.executable, "-I", "-S", "-c", f"{_CONFINE}{code}\n{asserts}\n"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=DEADLINE_S,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def code_in(answer: str) -> str:
    """Return the first fenced block, else the text from its first `def` or `import` on."""
    fenced = _FENCE.search(answer)
    if fenced:
        return fenced[1]
    start = re.search(r"^(def|import|from)\s", answer, re.M)
    return answer[start.start() :] if start else answer


def _is_harmless(code: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        is_door = isinstance(node, ast.Name) and node.id in _DOORS
        if is_door or (isinstance(node, ast.Attribute) and node.attr.startswith("__")):
            return False
        if any(name.partition(".")[0] not in _ALLOWED_IMPORTS for name in names):
            return False
    return True
