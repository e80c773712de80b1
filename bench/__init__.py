"""Benchmarks: Headrace compared with alternatives that write the same tables."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # servers of the tests
