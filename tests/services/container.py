"""Builds and runs a Dockerfile without a container engine: its base image is this machine, below an overlay.

Requires root on Linux, for namespaces of mounts and network. What an image or a container writes is lost at the end.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import string
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.runtime.child_process import Child, spawn
from services.wait import eventually

# What a build on this machine needs to reach its package registries.
_BUILD_VARIABLES = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "HEADRACE_MAVEN")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREPARE = """
set -eu
ip link set lo up
mount -t tmpfs tmpfs {at}
for stage in {stages}; do
  mkdir -p {at}/$stage/upper {at}/$stage/work {at}/$stage/root
  mount -t overlay overlay -o lowerdir=/,upperdir={at}/$stage/upper,workdir={at}/$stage/work {at}/$stage/root
  for each in proc dev; do mount --rbind /$each {at}/$stage/root/$each; done
  mount -t tmpfs tmpfs {at}/$stage/root/tmp
done
touch {at}/ready
exec sleep 3600
"""


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile in order, without comments and line continuations."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    pairs = [line.split(None, 1) for line in "\n".join(lines).replace("\\\n", " ").splitlines()]
    return [(name.upper(), value.strip()) for name, value in pairs]


def exec_form(value: str) -> list[str]:
    """A command in the exec form, the only one that passes signals on."""
    command = json.loads(value)
    assert isinstance(command, list), value
    return command


@dataclass(frozen=True)
class Stage:
    """What a stage of a Dockerfile says about its containers."""

    name: str
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    arguments: Mapping[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """A built image, in namespaces of its own; `last` is its last stage."""

    holder: Child  # the process that keeps the namespaces
    base: Path
    context: Path
    last: Stage = field(default_factory=lambda: Stage("0"))

    @property
    def root(self) -> Path:
        """Root directory of the containers, in the namespace."""
        return self.base / self.last.name / "root"

    def enter(self, *command: str) -> list[str]:
        """Run a command in the namespaces, with the root of this machine."""
        return ["nsenter", f"--target={self.holder.pid}", "--mount", "--net", "--", *command]

    def container(self, *command: str, **environment: str) -> list[str]:
        """Run a command as the user of the image, without any capability, with its environment only."""
        user, _, group = self.last.user.partition(":")
        variables = {**self.last.environment, **environment}
        drop = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--clear-groups"]
        return self.enter(
            *("chroot", str(self.root), "setpriv", f"--reuid={user}", f"--regid={group}", *drop),
            *("env", "-i", *(f"{name}={value}" for name, value in variables.items())),
            *("sh", "-c", f'cd {self.last.folder} && exec "$@"', "sh", *command),
        )

    def freeze(self, writable: Sequence[str], mounted: Mapping[Path, str]) -> None:
        """Make the root file system read-only, but for directories of the user and for what is mounted into it."""
        user, _, group = self.last.user.partition(":")
        owner = f"mode=0700,uid={user},gid={group}"
        steps = [f"mkdir -p {self.root}{each}" for each in (*writable, *mounted.values())]
        steps += [f"mount -t tmpfs -o {owner} tmpfs {self.root}{each}" for each in writable]
        steps += [f"mount --bind {source} {self.root}{at}" for source, at in mounted.items()]
        steps += [f"mount -o remount,bind,ro {self.root}{at}" for at in mounted.values()]
        steps += [f"mount -o remount,ro {self.root}"]
        _do(self.enter("sh", "-euc", "\n".join(steps)))


@contextmanager
def built_image(dockerfile: Path, context: Path, at: Path) -> Iterator[Image]:
    """Build an image by the instructions of its Dockerfile, and keep it for the length of the block."""
    assert os.geteuid() == 0, "make test-all requires root to run the Dockerfile"
    steps = instructions(dockerfile.read_text())
    stages = [str(number) for number, _ in enumerate(name for name, _ in steps if name == "FROM")]
    script = _PREPARE.format(at=at, stages=" ".join(stages))
    log = at.with_suffix(".log")
    at.mkdir()
    command = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", script]
    holder = spawn([str(shutil.which(command[0])), *command[1:]], log=log)
    image = Image(holder, at, context)
    try:
        eventually(lambda: _is_ready(image), say=log.read_text)
        yield _built(image, steps)
    finally:
        holder.stop()


def _is_ready(image: Image) -> bool:
    assert image.holder.poll() is None, "the namespaces have ended"
    return subprocess.run(image.enter("test", "-e", str(image.base / "ready")), check=False).returncode == 0


def _built(image: Image, steps: Sequence[tuple[str, str]]) -> Image:
    names: dict[str, str] = {}
    outer: dict[str, str] = {}  # arguments before the first stage
    for name, value in steps:
        stage = image.last
        if name == "FROM":
            number = str(len(names))
            names[value.partition(" AS ")[2] or number] = number
            image = replace(image, last=Stage(number))
        elif name == "ARG":
            variable, _, default = value.partition("=")
            text = shlex.split(default)[0]
            if not names:
                outer[variable] = text
            else:
                image = replace(image, last=replace(stage, arguments={**stage.arguments, variable: text}))
        else:
            image = replace(image, last=_step(image, names, name, value))
    return image


def _step(image: Image, names: Mapping[str, str], name: str, value: str) -> Stage:
    """The stage after an instruction."""
    stage = image.last
    match name:
        case "ENV":
            pairs = dict(word.split("=", 1) for word in shlex.split(value))
            return replace(stage, environment={**stage.environment, **pairs})
        case "RUN":
            _run(image, value)
        case "COPY":
            _copy(image, names, shlex.split(value))
        case "USER":
            return replace(stage, user=value)
        case "WORKDIR":
            return replace(stage, folder=value)
        case "ENTRYPOINT":
            return replace(stage, entrypoint=tuple(exec_form(value)))
        case "CMD":
            return replace(stage, command=tuple(exec_form(value)))
        case "HEALTHCHECK":
            return replace(stage, health=tuple(exec_form(value.partition(" CMD ")[2])))
        case "EXPOSE" | "STOPSIGNAL":
            pass
        case _:
            raise AssertionError(f"unknown instruction: {name}")
    return stage


def _run(image: Image, script: str) -> None:
    stage = image.last
    passed = {name: value for name, value in os.environ.items() if name.upper().startswith(_BUILD_VARIABLES)}
    variables = {**passed, **stage.environment, **stage.arguments}
    environment = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    # The network of this machine: a build downloads. The mounts of the namespace.
    mounts = ["nsenter", f"--target={image.holder.pid}", "--mount", "--"]
    _do([*mounts, "chroot", str(image.root), *environment, "sh", "-c", script])


def _copy(image: Image, names: Mapping[str, str], words: list[str]) -> None:
    origin = image.context
    if words[0].startswith("--from="):
        origin = image.base / names[words.pop(0).removeprefix("--from=")] / "root"
    *sources, target = words
    there = f"{image.root}{target}"
    for source in sources:
        assert not set(source) & set(string.whitespace)
        pattern = f"{origin}/{source.lstrip('/')}"
        # As COPY does: a directory's content goes below the target, a file into it.
        copy = f'mkdir -p "$(dirname {there}x)"; for each in {pattern}; do '
        copy += (
            f'if [ -d "$each" ]; then mkdir -p {there}; cp -a "$each/." {there}; else cp -a "$each" {there}; fi; done'
        )
        _do(image.enter("sh", "-euc", copy))


def _do(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{shlex.join(command[-3:])}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
