"""What the package imports is what it declares, and what it declares is locked."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _name(requirement: str) -> str:
    """A distribution's name in the form in which names are compared."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {_name(each) for each in project["dependencies"]}


def _imported() -> dict[str, set[str]]:
    """Every module of other packages that the source imports, wherever in a file, with the files that do."""
    found: dict[str, set[str]] = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(file.name)
    return {name: files for name, files in found.items() if name not in {*sys.stdlib_module_names, "headrace"}}


# Halves of a declared distribution, which asks for exactly one version of them.
_BROUGHT_BY = {"py4j": "pyspark", "pydantic_core": "pydantic"}


def test_every_import_is_declared():
    owners = packages_distributions()
    undeclared = {
        module: files
        for module, files in _imported().items()
        if not {_name(owner) for owner in (*owners.get(module, ()), _BROUGHT_BY.get(module, module))} & _declared()
    }
    assert undeclared == {}


def test_everything_declared_is_imported():
    owners = packages_distributions()
    used = {_name(owner) for module in _imported() for owner in owners.get(module, ())}
    assert _declared() - used == set()


def test_everything_declared_is_locked_for_the_product_and_for_its_tests():
    for lock in ("requirements.in", "requirements.txt", "requirements-dev.txt"):
        lines = (ROOT / lock).read_text().splitlines()
        locked = {_name(line) for line in lines if re.match(r"[A-Za-z0-9]", line)}
        assert _declared() - locked == set(), lock


def test_the_lock_of_the_product_is_part_of_the_one_for_its_tests():
    """Tests run with the versions that users get."""
    pins = [
        {line.split()[0] for line in (ROOT / lock).read_text().splitlines() if "==" in line and line[0] not in "# "}
        for lock in ("requirements.txt", "requirements-dev.txt")
    ]
    assert pins[0] - pins[1] == set()
