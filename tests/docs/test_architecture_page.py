"""The architecture page names files and packages that exist, and every package."""

from __future__ import annotations

import re

from docs.pages import DOCS, ROOT

PACKAGE = ROOT / "src" / "headrace"
PAGE = (DOCS / "internals" / "architecture.md").read_text()


def test_named_files_and_folders_exist():
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", PAGE))
    assert len(named) > 60
    assert not [path for path in sorted(named) if not ((PACKAGE / path).exists() or (ROOT / path).exists())]


def test_named_names_are_in_their_files():
    for path, name in re.findall(r"`([\w/]+\.py)` \(`([\w.]+)`", PAGE):
        assert re.search(rf"\b{name.split('.')[0]}\b", (PACKAGE / path).read_text()), (path, name)


def test_every_package_is_named():
    packages = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    assert not [package for package in sorted(packages) if f"`{package}/`" not in PAGE]
