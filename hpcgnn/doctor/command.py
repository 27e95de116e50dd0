"""``hpcgnn doctor``: collect the facts of all ranks and print findings."""

import argparse
import dataclasses
import sys

from hpcgnn.comm import Communicator, measure_links
from hpcgnn.console import print_json
from hpcgnn.doctor.findings import FAULT, GOOD, Finding, judge
from hpcgnn.doctor.folder import try_folder
from hpcgnn.doctor.host import look_around
from hpcgnn.errors import printable
from hpcgnn.spmd import collective


@collective
def main(options: argparse.Namespace, comm: Communicator) -> int:
    """Run the command; return its exit status."""
    ranks = comm.allgather(look_around())
    folder = try_folder(comm, options.dir.absolute())
    links = measure_links(comm, options.seconds) if options.seconds > 0 else []
    findings = judge(ranks, folder, links)
    if comm.rank == 0:
        if options.json:
            print_json(
                {
                    "findings": [dataclasses.asdict(finding) for finding in findings],
                    "ranks": [dataclasses.asdict(facts) for facts in ranks],
                    "links": [dataclasses.asdict(link) for link in links],
                }
            )
        else:
            for finding in findings:
                sys.stdout.write(line_of(finding) + "\n")
    return int(any(finding.verdict == FAULT for finding in findings))


def line_of(finding: Finding) -> str:
    """Return the line that shows a finding."""
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    mark = "ok" if finding.verdict == GOOD else finding.verdict
    return printable(f"{mark:>6}  {finding.topic}: {finding.seen}{remedy}")
