"""``hpcgnn selftest``: run all checks on every rank."""

import argparse
import dataclasses
import sys
import time

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, measure_links
from hpcgnn.console import print_json, report
from hpcgnn.doctor.command import line_of
from hpcgnn.doctor.findings import FAULT, Finding, judge
from hpcgnn.doctor.folder import try_folder
from hpcgnn.doctor.host import look_around
from hpcgnn.selftest.checks import CHECKS
from hpcgnn.selftest.fixtures import make_fixtures
from hpcgnn.spmd import collective

_LINKS_S = 2.0


@collective
def main(options: argparse.Namespace, comm: Communicator) -> int:
    """Run the command; return its exit status.

    Findings of a check are printed before the next check begins, so that a check that hangs or ends
    the process is the one after the last line.
    """
    began = time.perf_counter()
    watchdog.set_limit(options.stall)
    folder = options.dir.absolute()
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if comm.rank == 0 and not options.json:
            sys.stdout.write(line_of(finding) + "\n")
            sys.stdout.flush()

    facts = comm.allgather(look_around())
    for finding in judge(facts, try_folder(comm, folder), measure_links(comm, _LINKS_S)):
        tell(finding)
    if not any(finding.topic == "files" and finding.verdict == FAULT for finding in findings):
        with make_fixtures(comm, folder) as fixtures:
            for check in CHECKS:
                watchdog.set_place(check.__name__, "")
                for finding in check(fixtures):
                    tell(finding)
    faults = [finding.topic for finding in findings if finding.verdict == FAULT]
    if comm.rank == 0:
        if options.json:
            print_json(
                {
                    "seconds": time.perf_counter() - began,
                    "ranks": comm.size,
                    "faults": faults,
                    "findings": [dataclasses.asdict(finding) for finding in findings],
                }
            )
        else:
            result = f"faults in {', '.join(faults)}" if faults else "all passed"
            ranks = f"{comm.size} rank{'s' * (comm.size > 1)}"
            report(f"selftest on {ranks}: {result}, {time.perf_counter() - began:.0f} s")
    return int(bool(faults))
