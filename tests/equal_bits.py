"""Do two versions of the program compute equal bits? Digests of the files of many small commands.

    python -m tests.equal_bits before.json [--tree CHECKOUT] [--only PATTERN]
    python -m tests.equal_bits after.json --compare before.json [--within 1e-4]

Compares stores that `generate`, `convert` and `partition` write, runs of `train`, files of
`predict` and the output of `plan`, for all objectives, sources, models, exchanges and number
formats, on 1 to 4 ranks. The commands run as a user starts them, one after the other in one process
per rank, so only the commands of two trees are compared. There is one thread; times and traces do
not count. Digests of floating-point numbers come with their norm and a projection on random signs,
so that trees with sums in another order can be compared within a tolerance.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from safetensors.numpy import load_file

from hpcgnn.typing import Array

LIMIT_S = 900
"""Seconds for the commands on one number of ranks."""

DECIMAL = re.compile(rb"-?\d+\.\d+(?:e[-+]\d+)?")

COUNTED = ("rows_", "bytes_", "store_bytes", "ghost_bytes")
"""The counts of `plan`; all of its other values are measured."""

Digests = dict[str, str]


class Case(NamedTuple):
    """A command on a number of ranks, and the file or folder that it writes.

    Without such an output, its standard output is compared.
    """

    name: str
    ranks: int
    words: tuple[str, ...]
    output: str = ""


def cases() -> list[Case]:
    """Return all cases, in an order in which each finds its input on as many ranks or fewer."""
    return [*generated(), *converted(), *partitioned(), *trained(), *predicted(), *planned()]


def generated() -> Iterator[Case]:
    """Yield stores of generated graphs."""
    streamed = {
        "rmat": ("--scale=8", "--features=5", "--classes=4"),
        "rmat-undirected": ("--scale=7", "--undirected", "--memory=1"),
        "grid3d": ("--shape=7,6,5", "--features=3"),
        "communities": ("--nodes=300", "--features=6", "--classes=4"),
        "heat": ("--shape=4,5,6", "--trajectories=2", "--steps=5"),
    }
    in_memory = {
        "planted": ("--nodes=200", "--features=6", "--classes=4"),
        "planted-types": ("--nodes=240", "--features=6", "--classes=3"),
        "planted-graphs": ("--graphs=60", "--features=4", "--classes=3", "--targets=graphs.csv"),
    }
    for kind, words in {**streamed, **in_memory}.items():
        for ranks in (1, 2, 3, 4) if kind in streamed else (1,):
            path = f"{kind}.h5" if ranks == 1 else f"{kind}-by{ranks}.h5"
            command = ("generate", kind.removesuffix("-undirected"), "-o", path, *words)
            yield Case(f"generate {kind}", ranks, command, path)


def converted() -> Iterator[Case]:
    """Yield stores made from files, see `write_inputs`."""
    node_words = ("--nodes=nodes.csv", "--node-columns=id=id,label=label,split=split")
    named = ("--nodes=named_nodes.csv", "--node-columns=id=id,label=label")
    inputs = {
        "edges": ("edges.csv", *node_words, "--columns=src,dst,weight"),
        "edge-features": ("timed.csv", *node_words, "--edge-features=time,cost"),
        "undirected": ("edges.csv", *node_words, "--columns=src,dst,skip", "--undirected"),
        "names": ("named.csv", *named, "--random-split=60,20,20", "--columns=src,dst"),
        "relabelled": ("edges.csv", "--relabel", "--columns=src,dst,weight", "--duplicates=sum"),
        "relations": ("typed.csv", *node_words),
        "triples": ("triples",),
        "npz": ("arrays.npz",),
        "matrix-market": ("matrix.mtx",),
    }
    for name, words in inputs.items():
        for ranks in (1, 2, 3):
            path = f"{name}.h5" if ranks == 1 else f"{name}-by{ranks}.h5"
            yield Case(f"convert {name}", ranks, ("convert", *words, "-o", path), path)
    yield Case("convert programs", 1, programs_words(), "programs.h5")


def programs_words() -> tuple[str, ...]:
    """Return the command that makes program graphs."""
    shares = ("--valid-share=0.2", "--test-share=0.2", "--functions-per-file=0")
    return ("convert", "programs", "sources", "-o", "programs.h5", "--processes=1", *shares)


def partitioned() -> Iterator[Case]:
    """Yield stores in parts; the first one of each graph is used for training."""
    methods = {
        "edges": ("metis", "random", "block", "file:parts.txt"),
        "edge-features": ("random", "metis"),
        "undirected": ("metis",),
        "names": ("random",),
        "relations": ("metis",),
        "planted-types": ("random", "block"),
        "planted-graphs": ("block", "random"),
        "triples": ("random",),
        "rmat": ("metis",),
    }
    for graph, names in methods.items():
        for method in names:
            path = f"{graph}-{method.partition(':')[0]}.h5"
            parts = () if method.startswith("file:") else ("--parts=4",)
            words = ("partition", f"{graph}.h5", "-o", path, f"--method={method}", *parts)
            yield Case(f"partition {graph} {method}", 1, (*words, "--seed=3"), path)
    for graph in ("edges", "edge-features", "names", "relations", "planted-types", "rmat"):
        for ranks in (1, 2, 3, 4):
            path = f"{graph}-volume{ranks}.h5"
            words = ("partition", f"{graph}.h5", "-o", path, "--method=volume", "--parts=7")
            yield Case(f"partition {graph} volume", ranks, (*words, "--seed=3"), path)
    for ranks in (1, 2, 3, 4):
        path = f"heat-rcb{ranks}.h5"
        words = ("partition", "heat.h5", "-o", path, "--method=rcb", "--parts=5")
        yield Case("partition heat rcb", ranks, words, path)
    joint = ("--method=volume", "--parts=5", "--objective=joint", "--preset=fast")
    present = ("--method=volume", "--refine=present")
    for ranks in (1, 2):
        path = f"rmat-joint{ranks}.h5"
        yield Case("partition joint", ranks, ("partition", "rmat.h5", "-o", path, *joint), path)
        path = f"rmat-refined{ranks}.h5"
        words = ("partition", "rmat-metis.h5", "-o", path, *present)
        yield Case("partition refine", ranks, words, path)


FULL = {
    "gcn aware": (1, "edges-metis", "model.name=gcn"),
    "gcn many ranks": (4, "edges-metis", "model.name=gcn"),
    "gcn push": (2, "edges-metis", "model.name=gcn exchange.method=push model.norm=batch"),
    "sage joint": (3, "edges-metis", "model.name=sage exchange.method=joint train.dtype=float64"),
    "gcn oblivious": (2, "undirected-metis", "model.name=gcn exchange.method=oblivious"),
    "sage hierarchical": (4, "edges-random", "model.name=sage exchange.method=hierarchical"),
    "gcn hierarchical joint": (
        4,
        "edges-random",
        "model.name=gcn exchange.method=hierarchical_joint",
    ),
    "gcn sequential": (
        3,
        "edges-metis",
        "model.name=gcn exchange.schedule=sequential exchange.prefetch=1",
    ),
    "gat sequential": (
        2,
        "undirected-metis",
        "model.name=gat model.heads=2 exchange.schedule=sequential",
    ),
    "gcn replicated": (4, "edges-metis", "model.name=gcn exchange.replication=2"),
    "sage bfloat16": (2, "edges-metis", "model.name=sage train.precision=bfloat16"),
    "gcn wire bfloat16": (2, "edges-metis", "model.name=gcn exchange.wire=bfloat16"),
    "gcn wire int8": (3, "edges-metis", "model.name=gcn exchange.wire=int8"),
    "gat edge features": (
        2,
        "edge-features-random",
        "model.name=gat model.edge_features=true model.heads=2",
    ),
    "gine edge features": (2, "edge-features-random", "model.name=gine"),
    "gatv2": (2, "undirected-metis", "model.name=gatv2 model.heads=2"),
    "transformer": (3, "undirected-metis", "model.name=transformer model.heads=2"),
    "rgcn relations": (2, "relations-metis", "model.name=rgcn model.num_bases=2"),
    "rgcn types": (3, "planted-types-random", "model.name=rgcn model.input_width=8"),
    "hgt types": (2, "planted-types-random", "model.name=hgt model.input_width=8 model.heads=2"),
    "mixhop": (2, "edges-metis", "model.name=mixhop"),
    "gin": (2, "edges-metis", "model.name=gin model.norm=batch"),
    "appnp": (2, "edges-metis", "model.name=appnp model.hops=3"),
    "gcnii": (2, "edges-metis", "model.name=gcnii model.num_layers=3"),
    "sign": (2, "edges-metis", "model.name=sign model.hops=2"),
    "label augmentation": (
        2,
        "edges-metis",
        "model.name=sage train.label_augmentation=0.5 correct_and_smooth.enabled=true",
    ),
    "numbers": (2, "edges-metis", "model.name=gcn graph.targets=numbers.npy"),
    "reproducible": (
        3,
        "edges-metis",
        "model.name=gat graph.weights=ignore train.reproducible=true",
    ),
    "inductive": (2, "edges-metis", "model.name=sage train.inductive=true"),
    "structure": (2, "edges-metis", "model.name=gcn graph.structure=projection"),
    "names": (2, "names-random", "model.name=gcn"),
}
"""Runs on the whole graph: ranks, store and settings."""

SAMPLED = {
    "frontier": (1, "sampling.sampler=frontier sampling.walkers=8"),
    "multidimensional": (2, "sampling.sampler=multidimensional sampling.walkers=8"),
    "walk": (2, "sampling.sampler=walk"),
    "edge": (3, "sampling.sampler=edge"),
    "node": (2, "sampling.sampler=node"),
    "neighbour": (2, "sampling.sampler=neighbour sampling.fan_outs=[3,2]"),
    "partitioned": (2, "sampling.sampler=node sampling.topology=partitioned"),
}
"""Runs on subgraphs, with a budget of 40 nodes."""

LINKS = {
    "whole": (2, "undirected-metis", "model.name=gcn"),
    "whole on three": (3, "edges-metis", "model.name=sage links.negatives=degree"),
    "relations": (
        2,
        "relations-metis",
        "model.name=rgcn links.scorer=distmult links.ranking=all",
    ),
    "stored split": (2, "triples-random", "model.name=rgcn model.embeddings=true"),
    "both ends": (
        3,
        "relations-metis",
        "model.name=rgcn links.scorer=complex links.ends=both links.disjoint=false",
    ),
    "sampled": (
        2,
        "undirected-metis",
        "model.name=sage links.sampled=true sampling.sampler=neighbour sampling.fan_outs=[3,2]",
    ),
    "sampled subgraphs": (
        2,
        "undirected-metis",
        "model.name=gcn links.sampled=true sampling.sampler=node",
    ),
}
"""Runs that predict edges."""

GRAPHS = {
    "batches": (2, "model.name=gcn graphs.batch=16"),
    "batches of one rank": (1, "model.name=gin graphs.batch=16 graphs.readout=sum"),
    "all at once": (3, "model.name=gin graphs.batch=0"),
    "numbers": (2, "model.name=gcn graphs.batch=16 graph.targets=graphs.csv"),
}
"""Runs that predict whole graphs."""

PROGRAMS = {
    "sparse": (1, "programs.propagator=sparse"),
    "sparse on two": (2, "programs.propagator=sparse"),
}
"""Runs on program graphs."""

# The default share of the time would make the number of checkpoints depend on the machine.
SHORT = "train.epochs=3 run.threads=1 run.checkpoint_share=0 trace.enabled=false"
SMALL = f"{SHORT} model.hidden=6 model.dropout=0.2"
SUBGRAPHS = "sampling.budget=40 sampling.coverage=2 sampling.threads=0 sampling.steps=2"


def run_folder(name: str) -> str:
    """Return the run directory of a case."""
    return "run-" + name.replace(" ", "-")


def trained() -> Iterator[Case]:
    """Yield runs."""
    runs: dict[str, tuple[int, str, str]] = {f"full {name}": each for name, each in FULL.items()}
    for name, (ranks, words) in SAMPLED.items():
        words = f"train.task=sampled model.name=gcn {SUBGRAPHS} {words}"
        runs[f"sampled {name}"] = ranks, "undirected-metis", words
    for name, (ranks, store, words) in LINKS.items():
        runs[f"links {name}"] = ranks, store, f"train.task=links {SUBGRAPHS} {words}"
    for name, (ranks, words) in GRAPHS.items():
        runs[f"graphs {name}"] = ranks, "planted-graphs-block", f"train.task=graphs {words}"
    for name, (ranks, words) in PROGRAMS.items():
        few = "programs.hidden=6 programs.nodes=400 programs.supergraphs=2 programs.prefetch=1"
        runs[f"programs {name}"] = ranks, "programs", f"train.task=programs {few} {words}"
    for name, (ranks, store, words) in runs.items():
        folder = run_folder(name)
        size = SHORT if store == "programs" else SMALL
        words = f"train graph.store={store}.h5 run.dir={folder} {size} {words}"
        yield Case(name, ranks, tuple(words.split()), folder)


def predicted() -> Iterator[Case]:
    """Yield prediction files of earlier runs."""
    asked = {
        "full gcn aware": (1, "csv", ()),
        "full gcn push": (2, "h5", ()),
        "full sage joint": (3, "h5", ("--what=embeddings",)),
        "full names": (2, "csv", ("--nodes=n3,n1,n40",)),
        "full numbers": (2, "csv", ()),
        "links whole": (2, "csv", ("--top=3", "--nodes=4,1,9")),
        "graphs batches": (2, "csv", ()),
        "programs sparse": (1, "h5", ()),
    }
    for name, (ranks, kind, words) in asked.items():
        path = f"{run_folder(name)}-{kind}.{kind}"
        yield Case(
            f"predict {name}", ranks, ("predict", run_folder(name), "-o", path, *words), path
        )


def planned() -> Iterator[Case]:
    """Yield plans."""
    tasks = {
        "full": "graph.store=edges-metis.h5 model.name=gcn",
        "links": "graph.store=undirected-metis.h5 train.task=links model.name=gcn",
        "graphs": "graph.store=planted-graphs-block.h5 train.task=graphs graphs.batch=0",
    }
    for name, words in tasks.items():
        # Each choice is rehearsed in a separate process, which takes most of the time.
        options = "--ranks=3 --exchange=joint --schedule=resident --epochs=2"
        command = f"plan --json run.dir=planned {words} {SMALL} {options}"
        yield Case(f"plan {name}", 1, tuple(command.split()))


def write_inputs(folder: Path) -> None:
    """Write the files to convert."""
    rng = np.random.default_rng(7)
    num_nodes = 120
    src, dst = rng.integers(0, num_nodes, (2, 700))
    dst[:60] = 7
    weights = rng.random(len(src)).astype(np.float32)
    more = rng.normal(size=(2, len(src))).astype(np.float32)

    def table(name: str, header: str, *columns: Sequence[Any]) -> None:
        rows = (",".join(map(str, row)) for row in zip(*columns, strict=True))
        (folder / name).write_text("\n".join([*([header] if header else []), *rows, ""]))

    def names(ids: Any) -> list[str]:
        return [f"n{number}" for number in ids]

    table("edges.csv", "", src, dst, weights)
    table("timed.csv", "src,dst,time,cost", src, dst, *more)
    relation = rng.choice(["cites", "likes", "knows"], len(src))
    table("typed.csv", "src,dst,relation", src, dst, relation)
    table("named.csv", "", names(src), names(dst))
    ids = rng.permutation(num_nodes)
    labels = rng.integers(0, 4, num_nodes)
    split = rng.choice(["train", "valid", "test"], num_nodes, p=[0.5, 0.25, 0.25])
    features = (rng.normal(size=(num_nodes, 5)) + labels[:, None]).astype(np.float32)
    heads = ",".join(f"f{column}" for column in range(5))
    table("nodes.csv", f"id,label,split,{heads}", ids, labels, split, *features.T)
    table("named_nodes.csv", f"id,label,{heads}", names(ids), labels, *features.T)
    np.save(folder / "numbers.npy", rng.normal(size=num_nodes).astype(np.float32))
    np.savetxt(folder / "parts.txt", rng.integers(0, 5, num_nodes), "%d")
    arrays = {"edge_index": np.stack([src, dst]), "x": features, "y": labels.astype(np.int64)}
    types = {"node_type": np.sort(rng.integers(0, 2, num_nodes)), "node_types": ["a", "b"]}
    np.savez(folder / "arrays.npz", **arrays, train_idx=np.arange(40), weights=weights)
    del types
    pairs = sorted(set(zip((src + 1).tolist(), (dst + 1).tolist(), strict=True)))
    head = f"%%MatrixMarket matrix coordinate pattern general\n{num_nodes} {num_nodes} {len(pairs)}"
    lines = (f"{one} {other}" for one, other in pairs)
    (folder / "matrix.mtx").write_text("\n".join([head, *lines, ""]))
    (folder / "triples").mkdir()
    for name, some in {
        "train": slice(500),
        "valid": slice(500, 600),
        "test": slice(600, 700),
    }.items():
        columns = names(src[some]), relation[some], names(dst[some])
        lines = ("\t".join(row) for row in zip(*columns, strict=True))
        (folder / "triples" / f"{name}.txt").write_text("\n".join([*lines, ""]))
    for number in range(40):
        package = folder / "sources" / f"package{number % 10}"
        package.mkdir(parents=True, exist_ok=True)
        (package / f"module{number}.py").write_text(SOURCE.replace("NUMBER", str(number)))


SOURCE = '''"""A module."""


def total_of_NUMBER(values, factor):
    total = NUMBER
    for value in values:
        scaled = value * factor
        if scaled > total:
            total = total + scaled
        else:
            total = total - value
    return total


def longest_NUMBER(words, limit):
    best = ""
    for word in words:
        if len(word) > len(best) and len(word) < limit:
            best = word
    return best, limit
'''


def main() -> int:
    """Run the cases, write their digests, and report differences."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("output", type=Path, metavar="OUT.json")
    here = Path(__file__).resolve().parents[1]
    cli.add_argument("--tree", type=Path, default=here, help="checkout to run (default: this)")
    cli.add_argument("--only", default="*", metavar="PATTERN", help="names of cases, as of files")
    cli.add_argument("--compare", type=Path, metavar="OTHER.json", help="digests to compare with")
    cli.add_argument("--within", type=float, default=0, help="tolerance of numbers (default: 0)")
    cli.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = cli.parse_args()
    if options.folder is not None:
        return work(options.folder, options.output)
    with tempfile.TemporaryDirectory() as folder:
        found = run_all(chosen(options.only), options.tree.resolve(), Path(folder))
        failed = [name for name, each in found.items() if each["status"] != "0"]
        if failed:
            for log in sorted(Path(folder).glob("log-*.txt")):
                print(*errors_in(log.read_text()), sep="\n")
    options.output.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    for name in failed:
        print(f"{name}: ended with status {found[name]['status']}")
    print(f"{len(found)} cases, {len(failed)} failed")
    if options.compare is None:
        return len(failed) > 0
    other = json.loads(options.compare.read_text())
    return compare(found, other, options.within) or len(failed) > 0


def errors_in(log: str) -> Iterator[str]:
    """Yield the failed commands, with their errors."""
    for command in log.split("\n== "):
        if "error: " in command or "Traceback" in command:
            yield "\n".join(["", command.partition("\n")[0], command[-1500:]])


def chosen(pattern: str) -> list[Case]:
    """Return the cases whose names match, and those that make their inputs."""
    everything = cases()
    makers = {case.output.removesuffix(".h5"): case for case in everything if case.ranks == 1}
    makers |= {case.output: case for case in everything if case.output.startswith("run-")}
    found: set[Case] = set()

    def take(case: Case) -> None:
        if case in found:
            return
        found.add(case)
        for word in case.words[1:]:
            value = word.rpartition("=")[2].removesuffix(".h5")
            if value in makers and makers[value].output != case.output:
                take(makers[value])

    for case in everything:
        if fnmatch.fnmatch(case.name, pattern):
            take(case)
    return [case for case in everything if case in found]


def run_all(some: Sequence[Case], tree: Path, folder: Path) -> dict[str, Digests]:
    """Return the digests of all cases by their names and ranks."""
    write_inputs(folder)
    found: dict[str, Digests] = {}
    # One process makes the inputs of runs, and predictions of runs on more ranks.
    for ranks in (1, 2, 3, 4):
        waiting = [case for case in some if case.ranks == ranks]
        while waiting:
            results = run_cases(waiting, ranks, tree, folder)
            found |= {f"{name} on {ranks}": digests for name, digests in results.items()}
            left = [case for case in waiting if case.name not in results]
            if left:
                # The running command ended the world, or hung.
                found[f"{left[0].name} on {ranks}"] = {"status": "ended its process"}
            waiting = left[1:]
    return found


def run_cases(some: Sequence[Case], ranks: int, tree: Path, folder: Path) -> dict[str, Digests]:
    """Return the digests of cases that ran in one world of ranks, up to one that ended it."""
    results = folder / f"results-{ranks}.jsonl"
    results.unlink(missing_ok=True)
    (folder / "cases.json").write_text(json.dumps(some))
    command = [sys.executable, "-P", __file__, str(results), "--folder", str(folder)]
    if ranks > 1:
        launch = 'tree=$1; shift; . "$tree/jobs/env.sh" && mpi_exec "$@"'
        command = ["bash", "-c", launch, "bash", str(tree), str(ranks), *command]
    log = folder / f"log-{ranks}.txt"
    settings = {"PYTHONPATH": str(tree), "HPCGNN_VENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    with log.open("a") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **settings, "OMPI_MCA_osc": "^ucx"},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    text = results.read_text() if results.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return dict(lines)


def work(folder: Path, results: Path) -> int:
    """Run the cases of ``cases.json`` on this rank; the first one writes a line for each."""
    some = [Case(*each) for each in json.loads((folder / "cases.json").read_text())]
    world: Any = None
    if some[0].ranks > 1:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
    for case in some:
        status, text = run_command(case.words)
        if world is not None:
            world.Barrier()
        if world is None or world.rank == 0:
            digests = {"status": str(status)}
            if status == 0:
                digests |= digests_of(Path(case.output)) if case.output else planned_rows(text)
            with results.open("a") as file:
                file.write(json.dumps([case.name, digests]) + "\n")
    return 0


def run_command(words: Sequence[str]) -> tuple[int, str]:
    """Run ``hpcgnn WORDS`` in this process; return its status and output."""
    printed = io.StringIO()
    earlier, sys.argv = sys.argv, ["hpcgnn", *words]
    status: Any = 0
    print("==", " ".join(words), file=sys.stderr, flush=True)
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module("hpcgnn", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code or 0
    except Exception:
        traceback.print_exc()
        status = 1
    finally:
        sys.argv = earlier
    return status, printed.getvalue()


def digests_of(path: Path) -> Digests:
    """Return a digest of each part of a store, a prediction file or a run."""
    if path.suffix == ".h5":
        return hdf5_digests(path)
    if path.is_file():
        content = path.read_bytes()
        return {"file": digest(content, np.array(DECIMAL.findall(content), np.float64))}
    found = {}
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.name == "metrics.jsonl":
            rows = [lasting(json.loads(line)) for line in file.read_text().splitlines()]
            numbers = np.array([*numbers_in(rows)])
            found[name] = digest(json.dumps(rows, sort_keys=True).encode(), numbers)
        elif file.suffix == ".safetensors":
            # Its head also names the run.
            for key, tensor in sorted(load_file(file).items()):
                content = f"{key} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes()
                found[f"{name} {key}"] = digest(content, tensor)
        elif file.suffix == ".h5":
            found |= {f"{name} {key}": value for key, value in hdf5_digests(file).items()}
    assert "metrics.jsonl" in found, path
    return found


def hdf5_digests(path: Path) -> Digests:
    """Return a digest of each data set and attribute of a file, except for its origin."""
    found = {}

    def look(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            values = np.asarray(thing[()])
            content = str((values.dtype, values.shape)).encode() + values.tobytes()
            if values.dtype == object:
                content = repr(values.tolist()).encode()
            found[name] = digest(content, values)
        for key, value in thing.attrs.items():
            if key not in ("provenance", "created", "version"):
                found[f"{name}@{key}"] = digest(repr(without_times(value)).encode())

    with h5py.File(path) as file:
        look("", file)
        file.visititems(look)
    return found


def without_times(value: Any) -> Any:
    """Return the value of an attribute, without seconds in its JSON."""
    value = value.decode() if isinstance(value, bytes) else value
    if isinstance(value, str) and value.startswith("{"):
        return json.dumps(lasting(json.loads(value)), sort_keys=True)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of results without times."""
    times = ("seconds", "sample_wait_share")
    return {key: value for key, value in row.items() if key not in times and key[-2:] != "_s"}


def planned_rows(text: str) -> Digests:
    """Return digests of the counts of `plan`; memory and seconds are measured."""
    found = {}
    for row in json.loads(text):
        counted = {key: value for key, value in row.items() if key.startswith(COUNTED)}
        way = " ".join(str(row[key]) for key in ("ranks", "exchange", "schedule"))
        found[way] = digest(json.dumps(counted, sort_keys=True).encode())
    return found


def numbers_in(value: Any) -> Iterator[float]:
    """Yield the floating-point numbers in parsed JSON."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(part)


def digest(content: bytes, values: Array | None = None) -> str:
    """Return a short digest; for floating-point values, also their norm and a projection."""
    short = hashlib.sha256(content).hexdigest()[:16]
    if values is None or not np.issubdtype(values.dtype, np.floating):
        return short
    flat = np.nan_to_num(values.astype(np.float64).ravel())
    signs = np.random.default_rng(0).choice([-1.0, 1.0], len(flat))
    return f"{short} {np.linalg.norm(flat)!s} {signs @ flat!s}"


def compare(one: Mapping[str, Digests], other: Mapping[str, Digests], within: float) -> bool:
    """Print the differences of cases that both have; tell whether any is beyond a tolerance."""
    common = [name for name in one if name in other]
    different, close = 0, 0
    for name in common:
        ours, theirs = one[name], other[name]
        things = sorted(key for key in ours.keys() | theirs if ours.get(key) != theirs.get(key))
        near = {key for key in things if is_close(ours.get(key), theirs.get(key), within)}
        far = [key for key in things if key.removesuffix("@crc32") not in near]
        close += len(far) < len(things) and not far
        if far:
            different += 1
            shown = ", ".join(far[:6]) + (f" and {len(far) - 6} more" if far[6:] else "")
            print(f"{name}: {shown}")
    print(
        f"{different} of {len(common)} cases differ, {close} more within {within:g}; "
        f"{len(one.keys() ^ other)} in one file only"
    )
    return different > 0


def is_close(one: str | None, other: str | None, within: float) -> bool:
    """Tell whether the norms and projections of two digests are nearly equal."""
    try:
        numbers = [[float(word) for word in (each or "").split()[1:]] for each in (one, other)]
    except ValueError:
        # The status of a command that ended without results.
        return False
    if not all(numbers):
        return False
    most = within * max(norm for norm, _ in numbers)
    return all(abs(a - b) <= most for a, b in zip(*numbers, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
