"""Archives of the Python environment for Spark executors: interpreter and packages in one, Headrace in the other.

Virtual environments cannot be copied to another machine: they refer to their interpreter by its absolute path. The
archive has the interpreter itself, as conda-pack does. It requires the same processor architecture, and a C library
that is not older than the one of this machine.
"""

from __future__ import annotations

import compileall
import gzip
import hashlib
import os
import platform
import py_compile
import re
import shutil
import stat
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import headrace
from headrace.errors import SetupError
from headrace.runtime.cache import cache_folder, cache_lock
from headrace.version import VERSION

_MAX_ARCHIVES = 4  # of each kind in the cache
_LEVEL = 4  # of gzip; 9 takes three times as long and saves 3 %
# Parts that no task and no driver uses: jars are passed as spark.jars, and nodes of a cluster have Spark's own.
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?|idlelib|tkinter|turtledemo|lib2to3|ensurepip|site-packages|dist-packages|config-[^/]*)(/|$)"
    r"|^pyspark/(jars|bin|sbin|data|examples|licenses|python|pandas|ml|mllib)/"
    r"|\.(pyi|pyc|pyo|a|h|hpp|pxd|pyx|cmake|exe)$"
)
UNPACKED, PACKAGE = "environment", "headrace-package"  # folders of the two archives in the work folder of an executor
# Spark starts `bin/python`; it puts its own modules first in PYTHONPATH.
_LAUNCHER = """\
#!/bin/sh
home=$(cd "$(dirname "$0")/.." && pwd)
export LD_LIBRARY_PATH="$home/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$home/../headrace-package:$home/packages" PYTHONNOUSERSITE=1
unset PYTHONHOME
exec "$home/bin/{program}" "$@"
"""


def environment_path() -> Path:
    """Path of the archive of the interpreter and the packages in the cache, whether or not it exists."""
    system = f"{sys.version} {platform.machine()} {os.path.realpath(sys.executable)}"
    packages = [f"{package.name}=={package.version}" for package in _required_packages()]
    version = f"python{sys.version_info.major}{sys.version_info.minor}"
    return _cached(f"{version}-{platform.machine()}", [system, *packages, _LAUNCHER])


def existing_environment() -> Path:
    """Path of the archive of the interpreter and the packages; SetupError if it was not built."""
    path = environment_path()
    if not path.is_file():
        raise SetupError(
            "The archive of the Python environment for Spark executors does not exist.",
            hint="Run `headrace setup --pack`, or set spark.environment: installed if all nodes have Headrace.",
        )
    return path


def build_environment(*, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Build the archive of the interpreter and the packages unless it exists; returns its path."""

    def fill(root: Path) -> None:
        progress("Building the archive of the Python environment")
        _copy_interpreter(root)
        _copy_packages(root / "packages")

    return _build(environment_path(), fill)


def build_package() -> Path:
    """Build the archive of Headrace itself unless it exists; returns its path. It is small and changes more often."""
    own = Path(headrace.__file__).parent
    files = [(name, path) for name, path in sorted(_files_below(own)) if not _LEFT_OUT.search(name)]
    sums = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in files]
    path = _cached(f"headrace-{VERSION}", [sys.version, *sums])
    return _build(path, lambda root: _copy(files, root / "headrace"))


def _cached(name: str, identity: Iterable[str]) -> Path:
    """Path in the cache; its name covers everything that makes two archives differ."""
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:12]
    return cache_folder("environments") / f"{name}-{digest}.tar.gz"


def _build(path: Path, fill: Callable[[Path], None]) -> Path:
    if path.is_file():
        return path
    with cache_lock("environments") as scratch:
        if not path.is_file():
            root = scratch / "root"
            root.mkdir()
            fill(root)
            _compile(root)
            _write_tar(root, scratch / path.name)
            (scratch / path.name).replace(path)
            _delete_old(path)
    return path


def _delete_old(path: Path) -> None:
    """Delete archives with the same name and another digest, except the newest: running drivers may serve them."""
    same = path.parent.glob(f"{path.name.rpartition('-')[0]}-*.tar.gz")
    for old in sorted(same, key=lambda each: each.stat().st_mtime)[:-_MAX_ARCHIVES]:
        old.unlink(missing_ok=True)


def _required_packages() -> list[Distribution]:
    """Distributions that Headrace requires, directly and indirectly, sorted by name; without Headrace itself."""
    packages: dict[str, Distribution] = {}
    waiting = _requirements(distribution("headrace"))
    while waiting:
        name = waiting.pop()
        if name in packages:
            continue
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:
            continue  # only for another platform or Python version
        waiting += _requirements(packages[name])
    return [packages[name] for name in sorted(packages)]


def _requirements(package: Distribution) -> list[str]:
    """Normalized names of the requirements of a distribution, without those of its extras."""
    lines = [line for line in package.requires or () if not re.search(r";.*\bextra\b", line)]
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines)
    return [re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name]


def _copy_interpreter(root: Path) -> None:
    base = Path(sys.base_prefix)
    program = Path(os.path.realpath(sys.executable))
    (root / "bin").mkdir(parents=True)
    shutil.copy2(program, root / "bin" / program.name)
    launcher = root / "bin" / "python"
    launcher.write_text(_LAUNCHER.format(program=program.name))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    paths = sysconfig.get_paths(vars={"platbase": sys.base_exec_prefix})  # not those of the virtual environment
    for folder in {Path(paths["stdlib"]), Path(paths["platstdlib"])}:
        _copy(_files_below(folder), root / folder.relative_to(base))
    library = sysconfig.get_config_var("INSTSONAME")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and library:
        (root / "lib").mkdir(exist_ok=True)
        shutil.copy2(Path(sysconfig.get_config_var("LIBDIR")) / library, root / "lib" / library)


def _copy_packages(target: Path) -> None:
    for package in _required_packages():
        files = ((str(file), Path(str(package.locate_file(file)))) for file in package.files or ())
        _copy(((name, path) for name, path in files if not name.startswith("..")), target)


def _files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    return ((str(path.relative_to(folder)), path) for path in folder.rglob("*") if path.is_file())


def _copy(files: Iterable[tuple[str, Path]], target: Path) -> None:
    for name, path in files:
        if _LEFT_OUT.search(name) or not path.is_file():
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def _compile(root: Path) -> None:
    """Compile all modules: each executor unpacks the archive, and would compile them again."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(root, quiet=2, force=True, stripdir=str(root), invalidation_mode=unchecked)


def _write_tar(root: Path, target: Path) -> None:
    """Write a tar without names of users and times, so that equal content gives equal bytes."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path in sorted(root.iterdir()):
            archive.add(path, path.name, filter=anonymous)
