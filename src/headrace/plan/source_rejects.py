"""Records that their source has rejected: parts of files that are no records. They are dead letters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects
from headrace.decode.byte_scan import bools, owners
from headrace.reasons import Reason
from headrace.source.base import REJECT_HEADER

REJECTING_SOURCES = frozenset({"files"})


def source_rejects(records: pa.Table) -> Rejects:
    """Positions of rejected records, with reason and detail from a header of the source."""
    rejects = Rejects()
    headers = records["headers"].combine_chunks()
    headers = headers.chunk(0) if isinstance(headers, pa.ChunkedArray) and headers.num_chunks else headers
    pairs = headers.flatten()
    at = np.flatnonzero(bools(pc.equal(pairs.field("key"), REJECT_HEADER)))
    if len(at):
        positions = owners(headers)[at].tolist()
        for position, raw in zip(positions, pairs.field("value").take(pa.array(at)).to_pylist(), strict=True):
            reason, _, detail = raw.decode().partition(": ")
            rejects.add(position, Reason(reason), detail)
    return rejects
