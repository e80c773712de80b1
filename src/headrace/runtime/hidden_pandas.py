"""Hide pandas from imports: pyarrow imports it if it is installed, which takes 0.3 s, and Headrace does not use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("Headrace does not use pandas.", name=name)


@contextmanager
def hidden_pandas() -> Iterator[None]:
    """Import no pandas inside the block."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
