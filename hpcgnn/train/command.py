"""The command ``train``, which runs on every rank."""

import argparse
from pathlib import Path

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, agree
from hpcgnn.config.command_line import COMMON
from hpcgnn.config.file import all_keys, config_of, describe_keys
from hpcgnn.config.programs import sample_overrides
from hpcgnn.console import print_json, print_table
from hpcgnn.errors import InputError, meant_by
from hpcgnn.graph.device import require_device
from hpcgnn.spmd import collective
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import stop_on_signals
from hpcgnn.train.run.report import print_results


@collective
def main(arguments: argparse.Namespace, comm: Communicator) -> int:
    """Run the command; return its exit status."""
    if arguments.keys is not None:
        with agree(comm):
            sections = _keys_about(arguments.keys)
        if comm.rank == 0:
            for section, rows in sections.items():
                print_table(section, ("key", "default", "meaning"), rows, prose=True)
        return 0
    with stop_on_signals() as stop:
        with agree(comm):
            config = config_of(arguments.words, _sampled_words(arguments))
            if config.run.dir == "none":
                raise InputError(
                    "run.dir = 'none': a run needs a directory; name one (./none for that name) "
                    "and write less with run.save_predictions=false or run.checkpoint_share=0"
                )
            # Set it here: other ranks may already wait for this one at the end of the block.
            watchdog.set_limit(config.run.stall_s)
            require_device(config)
        summary, status = run_training(comm, config, stop)
    if comm.rank == 0 and summary is not None:
        if arguments.json:
            print_json(summary)
        else:
            print_results(summary, Path(config.run.dir))
    return status


def _keys_about(word: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return the keys that match a word or mention it: common ones first, then by section."""
    meant = meant_by(word, all_keys()) if word else []
    sections: dict[str, list[tuple[str, str, str]]] = {"the keys that matter most": []}
    for row in describe_keys():
        if row[0] in meant or word.lower() in " ".join(row).lower():
            key = f"the rest of [{row[0].partition('.')[0]}]"
            sections.setdefault(next(iter(sections)) if row[0] in COMMON else key, []).append(row)
    sections = {title: rows for title, rows in sections.items() if rows}
    if not sections:
        raise InputError(f"--keys {word}: no key matches; --keys alone lists all")
    return sections


def _sampled_words(arguments: argparse.Namespace) -> list[str]:
    if arguments.seed is not None:
        return sample_overrides(arguments.seed, large_batch=arguments.large_batch)
    if arguments.large_batch:
        raise InputError("--large-batch only applies to --sample-config SEED: give both")
    return []
