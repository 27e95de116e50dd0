"""Reproduce every number of docs/measured.md and every exhibit of the papers, quick ones first.

    python -m benchmarks.artefact FOLDER [--minutes 120] [--only WORDS]

Writes FOLDER/artefact.md: published, here, ratio. A second start resumes, since the outputs of
commands stay in FOLDER/outputs. Numbers out of their tolerance, or not reproduced, are named, and
the exit status is 1.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from benchmarks.claims import ROOT, UNCLAIMED, Case, Claim, claims
from benchmarks.harness import children_cpu_s, commit
from hpcgnn.console import report

COLUMNS = ("what", "published", "here", "ratio", "tolerance", "verdict", "seconds", "CPU s")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a claim; `here` is nan if there is no number, and `verdict` says why."""

    claim: Claim
    here: float
    verdict: str
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def line(self) -> str:
        """Return the row of the table."""
        claim, ratio = self.claim, self.here / self.claim.published
        here, ratio_text = (f"{self.here:.4g}", f"{ratio:.3f}") if isfinite(ratio) else ("", "")
        cells = [claim.row, f"{claim.published:g}", here, ratio_text, f"{claim.tolerance:.0%}"]
        cells += [self.verdict, f"{self.seconds:.0f}", f"{self.cpu_s:.0f}"]
        return f"| {' | '.join(cells)} |"


class Outputs:
    """Outputs of commands, kept in a folder; a command runs until it has succeeded once."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self._folder, self._ends = folder, time.monotonic() + 60 * minutes
        (folder / "outputs").mkdir(parents=True, exist_ok=True)

    def of(self, claim: Claim) -> dict[str, Any]:
        """Return the output of a claim's commands: JSON objects, seconds, processor seconds.

        Raises `RuntimeError` with the reason if there is none.
        """
        lines = claim.command.splitlines()
        minutes = claim.minutes / len(lines)
        outputs = [self._once(line, claim.row, minutes) for line in lines]
        sums = {key: sum(each[key] for each in outputs) for key in ("seconds", "cpu_s")}
        return {"cases": [case for each in outputs for case in each["cases"]], **sums}

    def _once(self, line: str, row: str, minutes: float) -> dict[str, Any]:
        name = hashlib.sha256(line.encode()).hexdigest()[:12]
        kept = self._folder / "outputs" / f"{name}.json"
        if not kept.exists():
            left = self._ends - time.monotonic()
            if 60 * minutes > left:
                raise RuntimeError(f"not run: {minutes:g} minutes, {left / 60:.0f} are left")
            report(f"artefact: {row}: about {minutes:g} minutes")
            output = self._run(line, kept.with_suffix(".log"), left)
            if output["status"]:
                raise RuntimeError(f"status {output['status']}: outputs/{name}.log")
            kept.write_text(json.dumps(output))
        return dict(json.loads(kept.read_text()))

    def _run(self, line: str, log: Path, limit_s: float) -> dict[str, Any]:
        command = f". jobs/env.sh && {line.format(folder=self._folder)}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HPCGNN_VENV": sys.prefix}
        began, used = time.monotonic(), children_cpu_s()
        with log.open("w") as errors:
            done = subprocess.run(
                ["timeout", f"{limit_s:.0f}", "bash", "-c", command],
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
                cwd=ROOT,
                env=environment,
                text=True,
            )
        return {
            "cases": [] if done.returncode else read_cases(done.stdout),
            "seconds": time.monotonic() - began,
            "cpu_s": children_cpu_s() - used,
            "status": done.returncode,
            "commit": commit(),
        }


def read_cases(text: str) -> list[Case]:
    """Return the JSON objects of a command's output: a list, or one per line."""
    if text.startswith("["):
        return list(json.loads(text))
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def judge(claim: Claim, outputs: Outputs) -> Outcome:
    """Reproduce a number and compare it with the published one."""
    if missing := [name for name in claim.needs if importlib.util.find_spec(name) is None]:
        return Outcome(claim, nan, f"not run: needs {', '.join(missing)}")
    try:
        output = outputs.of(claim)
        here = claim.value(output["cases"])
    except (RuntimeError, LookupError, ValueError) as error:
        return Outcome(claim, nan, str(error) or repr(error))
    within = abs(here / claim.published - 1) <= claim.tolerance
    verdict = "within" if within else "**differs**"
    return Outcome(claim, here, verdict, output["seconds"], output["cpu_s"])


def main() -> None:
    """Run the command."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.artefact", description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument(
        "--minutes", type=float, default=120, help="total; longer commands are skipped"
    )
    cli.add_argument("--only", default="", metavar="WORDS", help="only claims beginning with WORDS")
    options = cli.parse_args()
    outputs = Outputs(options.folder.resolve(), options.minutes)
    chosen = [claim for claim in claims() if claim.row.startswith(options.only)]
    outcomes = [judge(claim, outputs) for claim in sorted(chosen, key=lambda each: each.minutes)]
    lines = [f"commit {commit()}, {time.strftime('%Y-%m-%d')}", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [outcome.line for outcome in outcomes]
    lines += ["", *(f"- not made: {row}: {why}" for row, why in UNCLAIMED.items())]
    (options.folder / "artefact.md").write_text("\n".join([*lines, ""]))
    bad = [outcome for outcome in outcomes if outcome.verdict != "within"]
    for outcome in bad:
        report(f"artefact: {outcome.claim.row} ({outcome.claim.published:g}): {outcome.verdict}")
    report(f"artefact: {len(outcomes) - len(bad)} of {len(outcomes)} within their tolerance")
    sys.exit(int(bool(bad)))


if __name__ == "__main__":
    main()
