"""A folder of spec files that is watched while its pipelines run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.pipeline.events import Report
from headrace.serve.supervisor import Supervisor
from headrace.spec import Spec
from headrace.spec.diagnostics import Diagnostic
from headrace.validate.load import examine

_INTERVAL = 1.0  # seconds between two looks at the folder
_SUFFIXES = (".yaml", ".yml")

Signature = tuple[int, int, int, int]  # device, inode, size, time of the last change: differs when a file is replaced


def spec_files(folder: Path) -> dict[Path, Signature]:
    """The spec files of a folder; links are followed, and hidden files, such as those of editors, are skipped.

    OSError if the folder cannot be read.
    """
    files: dict[Path, Signature] = {}
    for name in sorted(os.listdir(folder)):  # noqa: PTH208
        path = folder / name
        if name.startswith(".") or path.suffix not in _SUFFIXES:
            continue
        try:
            status = path.stat()
        except OSError:  # deleted meanwhile, or a link to nothing
            continue
        if path.is_file():
            files[path] = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return files


@dataclass
class _SpecFile:
    """A file as it was read last."""

    signature: Signature
    specs: dict[str, Spec] = field(default_factory=dict)  # by pipeline


class SpecFolder:
    """Applies the changes of a folder to the pipelines of a supervisor.

    A file is read once it has not changed between two looks, and is forgotten once it was missing in two: programs
    replace files by writing them in place, or by deleting and creating them again.
    """

    def __init__(self, folder: Path, supervisor: Supervisor, report: Report) -> None:
        self._folder, self._supervisor, self._report = folder, supervisor, report
        self._files: dict[Path, _SpecFile] = {}
        self._last_look: dict[Path, Signature] = {}
        self._is_unreadable = False

    def start(self) -> None:
        """Read all files, without waiting, and start their pipelines."""
        self._last_look = spec_files(self._folder)
        self._apply(self._last_look)
        if not self._files:
            self._warn(f"{self._folder} has no spec files (*.yaml, *.yml); waiting for one.")

    def look(self) -> None:
        """Apply what has changed in the folder."""
        try:
            files = spec_files(self._folder)
        except OSError as error:
            if not self._is_unreadable:
                self._warn(f"{self._folder} cannot be read, so its pipelines stay as they are: {error.strerror}.")
            self._is_unreadable = True
            return
        self._is_unreadable = False
        before, self._last_look = self._last_look, files
        self._apply({path: signature for path, signature in files.items() if before.get(path) == signature}, before)

    def _apply(self, stable: Mapping[Path, Signature], before: Mapping[Path, Signature] | None = None) -> None:
        """Read the stable files that have changed, and forget those that are missing for the second time."""
        gone = [path for path in self._files if path not in self._last_look and path not in (before or {})]
        changed = {
            path: signature
            for path, signature in stable.items()
            if path not in self._files or self._files[path].signature != signature
        }
        if not gone and not changed:
            return
        for path in gone:
            del self._files[path]
        for path, signature in changed.items():
            self._read(path, signature)
        self._update_pipelines()

    def _read(self, path: Path, signature: Signature) -> None:
        """Read a file; the pipelines of one that is invalid stay as they are."""
        specs, diagnostics = examine(path)
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        known = self._files.setdefault(path, _SpecFile(signature))
        known.signature = signature
        if errors:
            self._report_invalid(path, errors, known.specs)
        else:
            known.specs = {spec.pipeline: spec for spec in specs}

    def _report_invalid(self, path: Path, errors: list[Diagnostic], running: Mapping[str, Spec]) -> None:
        names = ", ".join(sorted(running))
        kept = f"the earlier version of {names} keeps running" if names else "no pipeline of it runs"
        text = "\n".join([f"{path} is invalid; {kept}:", *map(str, errors)])
        self._report({"event": "invalid_spec", "pipeline": None, "file": str(path), "text": text})

    def _update_pipelines(self) -> None:
        """Start, restart and remove pipelines, so that those of the valid files run."""
        wanted: dict[str, tuple[Path, Spec]] = {}
        for path, file in sorted(self._files.items()):
            for name, spec in file.specs.items():
                if name in wanted:
                    self._warn(f"{path}: the pipeline {name} is already in {wanted[name][0]}; it is used from there.")
                else:
                    wanted[name] = path, spec
        running = self._supervisor.specs()
        for name in running.keys() - wanted.keys():
            self._supervisor.remove(name, "its spec was removed")
        self._supervisor.expect([spec for _, spec in wanted.values()])
        for name, (path, spec) in wanted.items():
            self._run(path, spec, running.get(name))

    def _run(self, path: Path, spec: Spec, running: Spec | None) -> None:
        try:
            if running is None:
                self._supervisor.add(spec, f"{path} was added")
            elif (running.digest, running.base) != (spec.digest, spec.base):
                self._supervisor.change(spec, f"{path} has changed")
        except HeadraceError as error:
            self._warn(f"{path}: {spec.pipeline} is not started: {error}")

    def _warn(self, text: str) -> None:
        self._report({"event": "warning", "pipeline": None, "text": text})


@contextmanager
def watch_folder(folder: Path, supervisor: Supervisor, report: Report) -> Iterator[None]:
    """Run the pipelines of a folder, and apply its changes during the block."""
    watched, ended = SpecFolder(folder, supervisor, report), threading.Event()
    supervisor.is_endless = True
    watched.start()

    def watch() -> None:
        while not ended.wait(_INTERVAL) and not supervisor.process_stop.is_set():
            watched.look()

    thread = threading.Thread(target=watch, name="watch specs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
