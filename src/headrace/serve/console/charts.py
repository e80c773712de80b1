"""Charts as coordinates; the templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.serve.console.text import UNKNOWN, number_text


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A line of values over time; where a value is unknown, the line has a gap."""

    width: int
    height: int
    lines: tuple[str, ...]  # points of each part between gaps
    dots: tuple[tuple[float, float], ...]  # values between two gaps
    text: str  # the same in words

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.lines and not self.dots


def sparkline(values: Sequence[float | None], unit: str, *, width: int = 160, height: int = 32) -> Sparkline:
    """A sparkline of values at equal distances, from 0 to their maximum."""
    known = [value for value in values if value is not None]
    if not known:
        return Sparkline(width, height, (), (), f"{unit}: {UNKNOWN}")
    top, step = max(*known, 1e-9), (width - 4) / max(len(values) - 1, 1)
    parts: list[list[tuple[float, float]]] = [[]]
    for position, value in enumerate(values):
        if value is None:
            parts.append([])
        else:
            parts[-1].append((round(2 + position * step, 1), round(height - 2 - value / top * (height - 4), 1)))
    lines = tuple(" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1)
    dots = tuple(part[0] for part in parts if len(part) == 1)
    last = number_text(values[-1])
    text = f"{unit}: now {last}, between {number_text(min(known))} and {number_text(max(known))}"
    return Sparkline(width, height, lines, dots, text)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar."""

    name: str
    x: float
    width: float
    text: str


def stacked_bar(seconds: Mapping[str, float], scale: float, width: float) -> tuple[Segment, ...]:
    """Durations side by side; `scale` is the number of seconds of the full width."""
    ends, segments = 0.0, []
    for name, value in seconds.items():
        size = value / scale * width if scale else 0.0
        segments.append(Segment(name, round(ends, 2), round(size, 2), f"{name} {value:.2f} s"))
        ends += size
    return tuple(segments)


@dataclass(frozen=True, slots=True)
class Bin:
    """Number of files of a size."""

    label: str
    count: int
    share: float  # of the largest bin


def size_histogram(sizes: Sequence[int]) -> tuple[Bin, ...]:
    """How many files are at most 1 MiB, 8 MiB, …"""
    mib = 1024 * 1024
    bounds = ((0, 1), (1, 8), (8, 32), (32, 128), (128, 512), (512, None))
    labels = ("up to 1 MiB", "1 to 8 MiB", "8 to 32 MiB", "32 to 128 MiB", "128 to 512 MiB", "over 512 MiB")
    counts = [
        sum(low * mib < max(size, 1) and (high is None or size <= high * mib) for size in sizes) for low, high in bounds
    ]
    top = max(*counts, 1)
    return tuple(Bin(label, count, count / top) for label, count in zip(labels, counts, strict=True))
