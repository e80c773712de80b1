"""Load specs: parse, resolve references, validate, check rules; all diagnostics are reported at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from headrace.errors import SpecError
from headrace.importers.detect import import_file, import_yaml, is_foreign
from headrace.importers.imported import Imported
from headrace.spec import yaml_reader
from headrace.spec.diagnostics import Diagnostic, Document, UnlocatedDiagnostic, diagnostic_at, from_validation
from headrace.spec.model import Spec, canonical_json
from headrace.spec.reader import follow
from headrace.spec.secrets import provide_secret
from headrace.validate.partial import more_diagnostics
from headrace.validate.rules import check_spec


def load(path: str | os.PathLike[str], on_import: Callable[[Imported], None] | None = None) -> list[Spec]:
    """Load the pipelines of a spec file, or of a configuration of another system.

    SpecError with all diagnostics if it is invalid. `on_import` is called for the other system's.
    """
    return _accept(*examine(path, on_import))


def loads(text: str, base: str | os.PathLike[str] = ".", file: str = "<spec>") -> list[Spec]:
    """Load the pipelines of a text; relative paths are resolved against `base`."""
    return _accept(*examine_text(text, Path(base), file))


def load_imported(imported: Imported, base: str | os.PathLike[str] = ".") -> list[Spec]:
    """Load an imported configuration; relative paths are resolved against `base`."""
    return _accept(*examine_imported(imported, Path(base)))


def examine(
    path: str | os.PathLike[str], on_import: Callable[[Imported], None] | None = None
) -> tuple[list[Spec], list[Diagnostic]]:
    """Valid pipelines of a file, and all errors and warnings."""
    file = os.fspath(path)
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(yaml_reader.MAX_BYTES + 1)
        return examine_text(content.decode("utf-8-sig"), Path(path).absolute().parent, file, on_import)
    except OSError as error:
        return [], [diagnostic_at(file, yaml_reader.Spot(), f"cannot read file: {error.strerror}", "a spec file")]
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return [], [diagnostic_at(file, yaml_reader.Spot(line), "not valid UTF-8", "UTF-8 text")]


def examine_text(
    text: str, base: Path, file: str = "<spec>", on_import: Callable[[Imported], None] | None = None
) -> tuple[list[Spec], list[Diagnostic]]:
    """Valid pipelines of a text, and all errors and warnings."""
    try:
        roots = [] if is_foreign(file) else yaml_reader.parse_yaml(text)
    except yaml_reader.InvalidYaml as error:
        return [], [diagnostic_at(file, error.spot, error.message, error.expected)]
    imported = import_file(file, text, os.environ) if is_foreign(file) else import_yaml(file, roots, os.environ)
    if imported is not None:
        if on_import is not None:
            on_import(imported)
        return examine_imported(imported, base)
    if not roots:
        return [], [diagnostic_at(file, yaml_reader.Spot(), "no pipeline", "pipeline, source and table")]
    return _specs([Document(file, root) for root in roots], base)


def examine_imported(imported: Imported, base: Path) -> tuple[list[Spec], list[Diagnostic]]:
    """Valid pipelines of an imported configuration, whose secrets in plain text are kept in memory."""
    for secret in imported.findings.secrets:
        if not provide_secret(secret.variable, secret.value, str(Path(imported.origin).absolute())):
            message = f"another file has a different secret for {secret.variable}"
            imported.findings.error(
                secret.place, secret.name, message, "a reference to a variable, or `headrace import`"
            )
    specs, diagnostics = _specs([draft.document() for draft in imported.drafts], base)
    reported = {(error.file, error.line, error.column) for error in imported.findings.errors if error.line}
    diagnostics = [each for each in diagnostics if (each.file, each.line, each.column) not in reported]
    return specs, [*imported.diagnostics(), *diagnostics]


def _specs(documents: Sequence[Document], base: Path) -> tuple[list[Spec], list[Diagnostic]]:
    specs, diagnostics = [], []
    for document in documents:
        spec, unlocated = _spec(document, base.absolute())
        diagnostics += [document.locate(diagnostic) for diagnostic in unlocated]
        if spec is not None:
            specs.append((document, spec))
    diagnostics += [document.locate(diagnostic) for document, diagnostic in _duplicates(specs)]
    return [spec for _, spec in specs], sorted(diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column))


def _accept(specs: list[Spec], diagnostics: Sequence[Diagnostic]) -> list[Spec]:
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
    if errors:
        raise SpecError("\n".join(str(diagnostic) for diagnostic in errors), tuple(diagnostics))
    return specs


def _spec(document: Document, base: Path) -> tuple[Spec | None, list[UnlocatedDiagnostic]]:
    raw = document.root.plain()
    diagnostics: list[UnlocatedDiagnostic] = []
    content = follow(raw, (), base, diagnostics)
    try:
        spec = Spec.model_validate(content, context={"base": base})
    except ValidationError as error:
        unresolved = {diagnostic.path for diagnostic in diagnostics}
        diagnostics += [
            diagnostic for diagnostic in from_validation(error, document) if diagnostic.path not in unresolved
        ]
        return None, [*diagnostics, *more_diagnostics(content, diagnostics, document, base)]
    spec.set_source_text(canonical_json(raw), base, yaml_reader.SpecSource(document.file, document.root))
    return spec, [*diagnostics, *check_spec(spec)]


def _duplicates(specs: Sequence[tuple[Document, Spec]]) -> Iterator[tuple[Document, UnlocatedDiagnostic]]:
    """Duplicate names, state paths and spools of pipelines in one file."""
    names = Counter(spec.pipeline for _, spec in specs)
    states = Counter(spec.state_uri for _, spec in specs)
    spools = Counter(spec.source.spool_path for _, spec in specs)
    for document, spec in specs:
        if names[spec.pipeline] > 1:
            yield (
                document,
                UnlocatedDiagnostic(
                    ("pipeline",), f"duplicate pipeline name '{spec.pipeline}'", "unique pipeline names"
                ),
            )
        elif states[spec.state_uri] > 1:
            yield (
                document,
                UnlocatedDiagnostic(
                    ("state",), f"duplicate state path {spec.state_uri}", "a separate state path for each pipeline"
                ),
            )
        elif (path := spec.source.spool_path) is not None and spools[path] > 1:
            key = ("source", spec.source.kind, "spool", "path")
            yield document, UnlocatedDiagnostic(key, f"duplicate spool {path}", "a separate spool for each pipeline")
