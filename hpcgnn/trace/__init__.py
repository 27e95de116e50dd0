"""What each rank did and when: named spans of time with the rows and bytes they moved.

`TraceRecorder` keeps totals in memory and writes one JSONL file a rank, which the scripts in
``analysis/`` read. The format is described in ``docs/trace_file.md``. This package imports only the
standard library and `hpcgnn.errors`.
"""

from hpcgnn.trace.energy import Counters, energy_line, energy_of, open_meter
from hpcgnn.trace.epochs import describe_epochs, steady
from hpcgnn.trace.recorder import TraceRecorder
from hpcgnn.trace.schema import WAIT_FOR_SAMPLES, trace_file
from hpcgnn.trace.span import Span
