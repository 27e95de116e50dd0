"""Typing errors give an error of one line, which names the thing and the remedy."""

import sys
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.__main__ import COMMANDS, main
from hpcgnn.commands.command import Command, find_command
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import GraphArrays, store_from_arrays

TRAIN = "train graph.store=g.h5 run.dir=runs/new model.hidden=4 train.epochs=1"
CASES = {
    # Commands.
    "repotr runs/a": "no command 'repotr'; did you mean",
    "trian g.toml": "no command 'trian'; did you mean 'train'?",
    "analyze report runs/a": "no command 'analyze'; did you mean 'analyse'?",
    "-q train": "options come after the command: hpcgnn COMMAND -q",
    "help": "no command 'help'; did you mean '--help'?",
    "--verison": "no command '--verison'; did you mean '--version'?",
    "doctor --seconds -1": "argument --seconds: -1: at least 0",
    "convert wrong.json -o x.h5": "wrong.json: nodes must be a list whose entries",
    "inspect g.h5 there.toml": "unrecognized arguments: there.toml; see",
    "analyse report g.h5": "g.h5: is not a directory; name the run.dir of a training run",
    "analyse report": "the following arguments are required: RUN",
    "analyse scaling empty": "empty",
    "supervise": "the following arguments are required: COMMAND",
    "supervise -- nosuchcommand": "nosuchcommand does not start hpcgnn; give the whole command",
    "clean none": "none: is not a folder; name those that outputs were written to",
    "version 3": "unrecognized arguments: 3; see hpcgnn version --help",
    "analyse repotr runs/a": "no analysis 'repotr'; did you mean 'report'?",
    "generate rmta -o x.h5": "invalid choice: 'rmta'; did you mean 'rmat'?",
    # Options.
    "train --epochs 3": "unrecognized arguments: --epochs; did you mean train.epochs=VALUE?",
    "train --lr=0.1 a.toml": "did you mean train.learning_rate=VALUE?",
    "train --json --hidden 3": "did you mean model.hidden=VALUE?",
    "train --ouput x": "unrecognized arguments: --ouput",
    "plan --ranks 2 --bandwith 3": "unrecognized arguments: --bandwith; did you mean --bandwidth?",
    "plan g.toml": "the following arguments are required: --ranks",
    "plan --ranks two": "argument --ranks: 'two': write numbers such as 1,2,4",
    "plan --ranks 0": "argument --ranks: 0: numbers must be at least 1",
    "plan --ranks 2 --memory much": "argument --memory: 'much': write a size such as 4GiB",
    "plan --ranks 2 --exchange joimt": "argument --exchange: 'joimt': did you mean 'joint'?",
    "plan --ranks 2 --schedule sequental": "'sequental': did you mean 'sequential'?",
    "plan --ranks 2 --epochs 1": "argument --epochs: 1: at least 2",
    "plan --ranks 2 --shape a --write-shape b": "not allowed with argument --shape",
    "partition g.h5 --parts 2": "the following arguments are required: -o",
    "partition g.h5 --parts x -o p.h5": "argument --parts: invalid int value: 'x'",
    "partition g.h5 --parts 2 --method mtis -o p.h5": "'mtis': did you mean 'metis'?",
    "partition g.h5 --parts 99 -o p.h5": "--parts 99: g.h5 has 30 nodes, and some parts",
    "partition g.h5 -o p.h5": "--parts",
    "partition g.h5 --parts 0 -o p.h5": "--parts 0: give at least 1",
    "partition g.h5 --parts 2 -o g.h5": "g.h5: is the input itself; choose another output",
    "partition g.h5 --parts 2 --time-limit -5 -o p.h5": "argument --time-limit: -5: at least 0",
    "plan g.toml --ranks 1 --latency -3": "argument --latency: -3: at least 0",
    "plan g.toml --ranks 1 --bandwidth 0": "configuration g.toml: No such file",
    "plan empty --ranks 1": "configuration empty is a directory",
    "partition none.h5 --parts 2 -o p.h5": "none.h5",
    "convert edges.tsv": "the following arguments are required: -o",
    "convert none.tsv -o x.h5": "none.tsv",
    "convert bad.tsv -o x.h5 --format edge-list": "bad.tsv",
    "convert edges.tsv -o x.h5 --format edgelist": "did you mean 'edge-list'?",
    "convert edges.tsv -o edges.tsv": "is the input itself",
    "convert edges.tsv -o x.h5 --random-split 60,20": "give three percentages such as",
    "convert edges.tsv -o x.h5 --random-split 60,20,30": "the percentages sum to 110; give",
    "convert edges.tsv -o x.h5 --random-split 0.6,0.2,0.2": "; for all nodes, 60,20,20",
    "convert edges.tsv -o x.h5 --num-nodes 2": "line 2: target id 2 is outside 0..1",
    "convert edges.tsv -o x.h5 --columns src=a,dst=b": "has no column 'a'; it has 0, 1",
    "convert g.h5 -o x.h5": "g.h5: is not converted; a store needs no conversion",
    "convert empty -o x.h5": "empty: holds none of graph.toml",
    "convert edges.tsv -o x.h5 --self-loops ad": "invalid choice: 'ad'; did you mean 'add'?",
    "convert edges.tsv -o x.h5 --memory 0": "argument --memory: '0': write a size such as 4GiB",
    "convert edges.tsv -o no/such/x.h5": "no/such",
    "generate rmat --scale 4": "the following arguments are required: -o",
    "generate rmat --scale 99 -o x.h5": "a scale of 99: give 0 to 40",
    "generate flow --reynolds abc -o x.h5": "--reynolds: 'abc': write numbers such as 1,2,4",
    "generate planted --nodes -3 -o x.h5": "argument --nodes: -3: at least 0",
    "generate grid3d --shape 3,4 -o x.h5": "is not three positive lengths such as 20,30,40",
    "split g.h5": "nothing to add: give --random-split A,B,C or --split-file NAME=FILES",
    "split g.h5 --count 3": "nothing to add",
    "split g.h5 --split-file x": "--split-file x: give NAME=TRAIN.txt,VALID.txt,TEST.txt",
    "split g.h5 --split-file s=no.txt,no.txt,no.txt": "no.txt: cannot be read",
    "init": "one of the arguments STORE --jobs is required",
    "init none.h5": "none.h5",
    "init edges.tsv": "edges.tsv: is not an HDF5 file; name a store made by hpcgnn convert",
    "init g.h5 -o there.toml": "there.toml: exists already; name another file with -o",
    "inspect none": "none",
    "inspect empty": "is a directory without state.json",
    "inspect there.toml": "there.toml",
    "inspect g.h5 --ranks 2": "--ranks, --relations and --undirected belong to --exchange; add it",
    "inspect g.h5 --exchange aware --verify": "cannot be combined; give one at a time",
    "inspect g.h5 --exchange aware --ranks 5": "1 part",
    "predict runs/none -o x.csv": "runs/none is not a run directory",
    "predict empty -o x.csv": "empty is not a run directory; give the run.dir",
    "export runs/none --to pyg": "runs/none",
    "export runs/none --to pyt": "invalid choice: 'pyt'; did you mean 'pyg'?",
    "completion fish": "invalid choice: 'fish'; choose one of bash, zsh",
    # Configurations.
    "train graph.store=g.h5": "run.dir = '': give a directory",
    "train run.dir=x": "graph.store = '': give the path of a store",
    "train none.toml": "configuration none.toml: No such file or directory",
    "train g.h5": "a store is given as graph.store=g.h5",
    "train empty": "configuration empty is a directory; a run directory has empty/config.toml",
    "train there.toml train.epochs": "more than one configuration file: there.toml train.epochs",
    f"{TRAIN} model.name=mine.py": "model.name = 'mine.py': choose one of MODULE:CLASS, appnp",
    "train g.toml --ranks 2": "unrecognized arguments: --ranks 2",
    "plan graph.store=g.h5 --ranks 1,2": "the store has 1 part, too few for 2 ranks",
    "inspect edges.tsv": "edges.tsv: is not an HDF5 file; name a store made by hpcgnn convert",
    "train broken.toml": "configuration broken.toml is not valid TOML",
    "train --keys qqqq": "no key matches; --keys alone lists all",
    "train --large-batch": "--large-batch only applies to --sample-config SEED: give both",
    f"{TRAIN} lr=0.1": "override 'lr=0.1': write train.learning_rate=0.1",
    f"{TRAIN} epochs=3": "override 'epochs=3': write train.epochs=3",
    f"{TRAIN} batch_size=64": "write sampling.budget=64 or graphs.batch=64",
    f"{TRAIN} hidden_channels=8": "override 'hidden_channels=8': write model.hidden=8",
    f"{TRAIN} num_layers=2": "override 'num_layers=2': write model.num_layers=2",
    f"{TRAIN} dropout=0.1": "write model.dropout=0.1 or programs.dropout=0.1",
    f"{TRAIN} train.lr=0.1": "unknown key: 'train.lr'; did you mean 'train.learning_rate'?",
    f"{TRAIN} train.epoch=3": "unknown key: 'train.epoch'; did you mean 'train.epochs'?",
    f"{TRAIN} model.epochs=3": "unknown key: 'model.epochs'; did you mean 'train.epochs'?",
    f"{TRAIN} modle.hidden=3": "unknown section: 'modle'; did you mean 'model'?",
    f"{TRAIN} model.zzz=3": "unknown key: 'model.zzz'; choose one of activation",
    f"{TRAIN} exchange.method=joimt": "exchange.method = 'joimt': did you mean 'joint'?",
    f"{TRAIN} model.name=graphsage": "model.name = 'graphsage': did you mean 'sage'?",
    f"{TRAIN} model.name=GCN": "model.name = 'GCN': did you mean 'gcn'?",
    f"{TRAIN} model.name=nonesuch": "model.name = 'nonesuch': choose one of MODULE:CLASS, appnp",
    f"{TRAIN} model.norm=batchnorm": "model.norm = 'batchnorm': did you mean 'batch'?",
    f"{TRAIN} exchange.groups=2": "exchange.groups = 2 does not work with train.task = 'full'",
    f"{TRAIN} exchange.groups=2 exchange.replication=2": "its groups have no copies of block rows",
    f"{TRAIN} exchange.groups=2 train.task=fields": "a step has 1 samples; raise fields.batch",
    f"{TRAIN} train.optimizer=Adam": "train.optimizer = 'Adam': did you mean 'adam'?",
    f"{TRAIN} train.device=gpu": "train.device = 'gpu': did you mean 'cuda'?",
    f"{TRAIN} train.precision=bf16": "train.precision = 'bf16': did you mean 'bfloat16'?",
    f"{TRAIN} train.task=node": "train.task = 'node': did you mean 'full'?",
    f"{TRAIN} model.hidden=0": "model.hidden = 0: must be at least 1",
    f"{TRAIN} model.hidden=wide": "model.hidden = 'wide': expected a whole number",
    f"{TRAIN} model.dropout=1.5": "model.dropout = 1.5: must lie in [0, 1)",
    f"{TRAIN} train.learning_rate=-1": "train.learning_rate = -1.0: must be positive",
    f"{TRAIN} model.residual=1": "model.residual = 1: expected true or false",
    f"{TRAIN} train.nesterov=true": "train.nesterov = True: needs sgd with momentum",
    f"{TRAIN} exchange.prefetch=2": "exchange.prefetch = 2: needs exchange.schedule=sequential",
    f"{TRAIN} model.heads=4": "model.heads = 4: sage has no such option; leave it out, or",
    f"{TRAIN} model.name=gine train.task=sampled": "does not work with",
    f"{TRAIN} exchange.wire=int2 model.name=gat": "does not work with",
    f"{TRAIN} train.seeds=[1,1]": "train.seeds = [1, 1]: must be different and not negative",
    f"{TRAIN} train.epochs=1e3": "train.epochs = 1000.0: expected a whole number",
    f"{TRAIN} train.epochs=": "train.epochs = '': expected a whole number",
    f"{TRAIN} =5": "override '=5': write section.key=value",
    f"{TRAIN} model.hidden==5": "model.hidden = '=5': expected a whole number",
    f"{TRAIN} train.patience=-2": "train.patience = -2: must not be negative",
    f"{TRAIN} train.task=links links.train=0.9": "+ links.valid + links.test = 1.05: must be",
    f"{TRAIN} train.task=edges": "its edges have no labels; convert with --edge-labels COLUMN",
    f"{TRAIN} train.task=graphs": "g.h5 is one graph; convert many with a column graph",
    f"{TRAIN} train.task=fields": "g.h5 has no node fields",
    f"{TRAIN} model.name=nosuch:Model": "there is no module 'nosuch' in",
    f"{TRAIN} graph.targets=none.csv": "graph.targets: none.csv: No such file or directory",
    f"{TRAIN} graph.relations=cites": "no relation 'cites'",
    f"{TRAIN} graph.split=other": "'other'",
    f"{TRAIN} graph.store=none.h5": "none.h5",
    f"{TRAIN} graph.store=there.toml": "there.toml",
    f"{TRAIN} run.track=excel": "run.track = 'excel': choose one of csv",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    store_from_arrays(
        Path("g.h5"),
        GraphArrays(
            name="g",
            num_nodes=30,
            edges={"": tuple(rng.integers(0, 30, (2, 90)))},
            labels=np.arange(30) % 4,
            features=rng.random((30, 3), dtype=np.float32),
            split=np.arange(30, dtype=np.uint8) % 3 + 1,
        ),
    )
    Path("edges.tsv").write_text("0\t1\n1\t2\n")
    Path("bad.tsv").write_text("0\t1\n1\tx\n2\t\n")
    Path("wrong.json").write_text("{}")
    Path("there.toml").write_text("[model]\nhidden = 3\n")
    Path("broken.toml").write_text("[model\n")
    Path("empty").mkdir()


# Another test may have loaded the module that a command runs.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(("words", "told"), CASES.items(), ids=CASES)
def test_wrong_usage_is_one_line(
    words: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command, *rest), status = words.split(), 2
    before = sorted(Path().rglob("*"))
    try:
        found = find_command(command) if command in COMMANDS else None
        if isinstance(found, Command):
            # Its only rank is this process.
            found.call(rest, MPI.COMM_SELF)
        else:
            monkeypatch.setattr(sys, "argv", ["hpcgnn", command, *rest])
            main()
    except InputError as fault:
        line = one_line(fault)
    except SystemExit as end:
        status = end.code
        [line] = capsys.readouterr().err.splitlines()
    else:
        raise AssertionError("it runs")
    assert status == 2
    assert told in line
    assert len(line) < 500
    left = {path for path in Path().rglob("*") if "runs" not in path.parts}
    assert left == set(before), "nothing is made, and nothing is lost"
