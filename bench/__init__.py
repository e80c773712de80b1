"""What Headrace costs, beside what one would otherwise write."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the servers of the tests serve here, too
