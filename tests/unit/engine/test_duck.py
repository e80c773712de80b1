"""DuckDB belongs to one thread at a time, and outlives it."""

from __future__ import annotations

import subprocess
import sys
import threading

from headrace.engine import duck

ENDS_BESIDE_ITS_THREADS = """
import threading
from headrace.engine import duck

ready, end = threading.Barrier(9), threading.Event()

def work():
    duck.connection().execute("SELECT 1")
    ready.wait()
    end.wait()

duck.connection()
threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
ready.wait()
end.set()
threads[0].join()  # the others are about to end, too
"""


def test_threads_that_end_with_the_process_do_not_abort_it() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_BESIDE_ITS_THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_has_its_own_and_leaves_it_to_the_next() -> None:
    mine, seen = duck.connection(), list[object]()
    for _ in range(2):
        thread = threading.Thread(target=lambda: seen.append(duck.connection()))
        thread.start()
        thread.join()
    assert mine is not seen[0] is seen[1]
