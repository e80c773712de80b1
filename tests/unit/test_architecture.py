"""The layers of the package, what it exports, and that no two packages import each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import typer

import headrace
from headrace import cli

ROOT = Path(headrace.__file__).parent

# Top to bottom: a package imports from its own layer and from those below.
LAYERS = [
    {"entry", "cli", "serve", "dev", "compat"},
    {"table", "dead_letters", "recovery", "maintain", "validate", "hot_store"},
    {"pipeline"},
    {"write", "ledger", "plan"},
    {"decode", "transform", "stage", "delta", "source"},
    {"storage", "engine", "runtime"},
    {"spec", "importers"},
]
FLAT = {"errors", "reasons", "retry", "faults", "version"}  # below all packages
SPARK = {"source", "write", "runtime", "pipeline", "table"}


def _imports() -> list[tuple[str, str, str]]:
    """(file, importing package, imported name) of every import, those inside functions and for types included."""
    imports = []
    for file in ROOT.rglob("*.py"):
        package = file.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "headrace":
                    names = [f"headrace.{item.name}" for item in node.names]
            imports += [(str(file.relative_to(ROOT)), package, name) for name in names]
    return imports


def _own_imports() -> list[tuple[str, str, str]]:
    """(file, importing package, imported package) of imports across packages; `headrace/__init__.py` may import all."""
    return [
        (file, package, name.split(".")[1])
        for file, package, name in _imports()
        if name.startswith("headrace.") and name.split(".")[1] != package and package != "__init__"
    ]


def _layer(package: str) -> int:
    return next((number for number, layer in enumerate(LAYERS) if package in layer), len(LAYERS))


def test_every_package_has_its_layer():
    packages = {path.name for path in ROOT.iterdir() if any(path.glob("*.py"))}
    assert packages == set().union(*LAYERS)


def test_nothing_else_is_flat():
    assert {path.stem for path in ROOT.glob("*.py")} == FLAT | {"__init__"}


def test_imports_go_down():
    assert not [each for each in _own_imports() if _layer(each[2]) < _layer(each[1])]


def test_no_packages_import_each_other():
    graph: dict[str, set[str]] = {}
    for _, package, imported in _own_imports():
        graph.setdefault(package, set()).add(imported)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as cycle:
        pytest.fail(f"packages import each other: {cycle.args[1]}")


def test_recovery_and_maintenance_work_on_a_context():
    """Not on the whole pipeline, which only `resume` opens."""
    users = {file for file, _, name in _imports() if name == "headrace.pipeline.pipeline"}
    assert {file for file in users if file.startswith(("recovery/", "maintain/"))} == {"recovery/resume.py"}


def test_only_the_parts_around_spark_import_it():
    assert {part for _, part, name in _imports() if name.split(".")[0] == "pyspark"} <= SPARK


def test_the_exported_names_are_there():
    assert headrace.__all__ == sorted(headrace.__all__, key=lambda name: (not name[0].isupper(), name))
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError):
        _ = headrace.nothing


def test_importing_headrace_imports_neither_spark_nor_duckdb():
    code = "import sys, headrace; print([name for name in ('pyspark', 'duckdb', 'pyarrow') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_datasets_of_delta_rs_are_read_by_a_file_system_of_arrow() -> None:
    """Its own is Python called from Arrow's threads: one of them that is at it when Python ends aborts the process."""
    calls = [
        (str(file.relative_to(ROOT)), {word.arg for word in node.keywords})
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to_pyarrow_dataset", "to_pyarrow_table")
    ]
    assert calls
    assert [file for file, given in calls if "filesystem" not in given] == []


def test_one_module_has_the_metadata_keys_of_payload_fields():
    files = {
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value.startswith(b"headrace.")
    }
    assert files == {"decode/payload_field.py"}


# Public names that may occur in several modules, each with its reason.
SHARED_NAMES = {"main": "the entry point of a program"}


def _commands(group: typer.Typer) -> set[tuple[str, str]]:
    """Module and name of the function of every command. It is named as the command is."""
    functions = [each.callback for each in group.registered_commands]
    groups = [each.typer_instance for each in group.registered_groups]
    own = {(each.__module__.removeprefix("headrace."), each.__name__) for each in functions if each is not None}
    return own.union(*(_commands(each) for each in groups if each is not None))


def _public_names() -> dict[str, list[str]]:
    """The modules of every public class and function, but for commands."""
    commands = _commands(cli.app)
    modules: dict[str, list[str]] = {}
    for file in ROOT.rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            if (module, node.name) not in commands:
                modules.setdefault(node.name, []).append(module)
    return modules


def test_a_public_name_means_one_thing():
    shared = {name: modules for name, modules in _public_names().items() if len(modules) > 1}
    assert {name: modules for name, modules in shared.items() if name not in SHARED_NAMES} == {}
    assert not SHARED_NAMES.keys() - shared.keys()


def test_no_other_public_name_is_that_of_a_class():
    """Neither a type alias nor a constant: a reader who knows the class would take it for that."""
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in ROOT.rglob("*.py")}
    classes = {node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    others = {
        (file, name.id)
        for file, tree in trees.items()
        for node in tree.body
        for name in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(name, ast.Name) and not name.id.startswith("_")
    }
    assert {(file, name) for file, name in others if name in classes} == set()
