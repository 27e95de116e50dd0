"""The command, on every rank."""

import dataclasses
import sys
from pathlib import Path

from hpcgnn.comm import Communicator, measure_links
from hpcgnn.console import print_json
from hpcgnn.doctor.findings import FAULT, GOOD, judge
from hpcgnn.doctor.folder import try_folder
from hpcgnn.doctor.host import look_around
from hpcgnn.errors import printable
from hpcgnn.launch import RankArgumentParser
from hpcgnn.spmd import collective

_DESCRIPTION = """Look at the machine as a run would find it, and say what to mend.
Start it as a run is started:
  srun hpcgnn doctor --dir /scratch/me      (or mpiexec -n 8 hpcgnn doctor)
Alone it looks at this host only."""

_EPILOG = """exit status: 0 a run will work (there may be remarks); 1 it will not."""


@collective
def main(comm: Communicator) -> int:
    """Run the command with the arguments of the process; return its exit status."""
    parser = RankArgumentParser("doctor", _DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where stores and runs will be (default: here)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="for measuring the links between ranks; 0: do not (default: 5)",
    )
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    options = parser.parse_args()
    ranks = comm.allgather(look_around())
    folder = try_folder(comm, options.dir.absolute())
    links = measure_links(comm, options.seconds) if options.seconds > 0 else []
    findings = judge(ranks, folder, links)
    if comm.rank == 0:
        if options.json:
            print_json(
                {
                    "findings": [dataclasses.asdict(each) for each in findings],
                    "ranks": [dataclasses.asdict(each) for each in ranks],
                    "links": [dataclasses.asdict(each) for each in links],
                }
            )
        else:
            for each in findings:
                remedy = f"; {each.remedy}" if each.remedy else ""
                mark = "  ok" if each.verdict == GOOD else each.verdict
                sys.stdout.write(printable(f"{mark:>6}  {each.topic}: {each.seen}{remedy}") + "\n")
    return int(any(each.verdict == FAULT for each in findings))
