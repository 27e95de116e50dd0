"""List the formats that are read, detect the format of an input, and convert it."""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.console import report
from hpcgnn.convert.divide_input import OneReaderError
from hpcgnn.convert.field_files import with_fields
from hpcgnn.convert.pipeline import Report, write_store
from hpcgnn.convert.read.files import MATRIX_MARKET, PARQUET, read_pieces
from hpcgnn.convert.source import ConvertOptions, EdgeStream, GraphSource, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import check_output


@dataclass(frozen=True, slots=True)
class Format:
    """A reader: its module, a one-line description, its file suffixes and its function's name.

    Inputs of `divided` formats are read by all ranks together, others by the first rank.
    """

    module: str
    about: str
    endings: tuple[str, ...] = ()
    reader: str = "read"
    divided: bool = False

    def read(self, path: Path, options: ConvertOptions) -> GraphSource:
        """Import the reader with its libraries and read `path`; raises `InputError`."""
        return getattr(_module(self.module), self.reader)(path, options)


FORMATS: Mapping[str, Format] = {
    "npz": Format("npz", "arrays of edges and nodes in one .npz", (".npz",)),
    "ogb": Format("ogb", "OGB node-property folder"),
    "graphsaint": Format("graphsaint", "GraphSAINT folder"),
    "planetoid": Format("planetoid", "Planetoid files ind.NAME.*"),
    "matrix-market": Format("matrix_market", "Matrix Market .mtx", endings=(".mtx",)),
    "geom-gcn": Format("geom_gcn", "Geom-GCN folder, with all its splits"),
    "graphsage": Format("graphsage", "GraphSAGE folder PREFIX-G.json, or PPI's three graphs"),
    "matlab": Format("matlab", "MATLAB .mat", endings=(".mat",)),
    "metis": Format("metis", "METIS .graph", endings=(".graph", ".metis")),
    "networkx": Format(
        "networkx_files",
        "GraphML, GML or GEXF, as networkx reads it",
        (".graphml", ".gml", ".gexf", ".adjlist"),
    ),
    "edge-list": Format("edge_list", "lines 'src dst [weight]'", divided=True),
    "typed-edge-list": Format(
        "edge_list", "lines 'src dst relation [weight]'", reader="read_typed", divided=True
    ),
    "triples": Format(
        "edge_list",
        "folder with train, valid and test files of triples",
        reader="read_triples",
        divided=True,
    ),
    "tables": Format("table_folder", "folder of tables that a graph.toml names"),
    "torch-geometric": Format(
        "python", "data set by name, pyg:CLASS[/NAME]", reader="read_data_set"
    ),
    "torch-file": Format("torch_file", "Data or HeteroData that torch.save wrote", (".pt", ".pth")),
    "tudataset": Format("tudataset", "TUDataset folder of many graphs"),
    "nekrs": Format("nekrs", "folder written by nekRS-ML's plug-in gnn on any number of ranks"),
    "mesh": Format(
        "mesh",
        "mesh with point data that meshio reads, or a time series of them",
        (".vtu", ".vtk", ".pvd", ".xdmf", ".xmf", ".msh", ".e", ".exo", ".ex2", ".med", ".inp"),
    ),
    "netcdf": Format("netcdf", "NetCDF grid with fields over time", (".nc", ".nc4", ".cdf")),
    "dgl-csv": Format(
        "descriptions", "folder of a DGL CSVDataset, with its meta.yaml", reader="read_dgl_csv"
    ),
    "graphstorm": Format(
        "descriptions", "GraphStorm's construction file", (".json",), "read_graphstorm"
    ),
}

_FOLDERS = {
    "graph.toml": "tables",
    "meta.yaml": "dgl-csv",
    "adj_full.npz": "graphsaint",
    "out1_graph_edges.txt": "geom-gcn",
    "NAME-G.json": "graphsage",
    "train_graph.json": "graphsage",
    "NAME_graph_indicator.txt": "tudataset",
    "pos_node_rank_NAME.bin": "nekrs",
    "raw/": "ogb",
    "ind.NAME.graph": "planetoid",
}
_TABLES = frozenset(
    {"edge-list", "typed-edge-list", "triples", "tables", "dgl-csv", "graphstorm", "networkx"}
)
_TEXT_ENDINGS = (".txt", ".tsv", ".csv", ".el", ".edges", ".edgelist", *PARQUET)
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_REFUSED = {
    ".h5": "a store needs no conversion",
    ".hdf5": "a store needs no conversion",
    ".pkl": "pickles could execute code: save the arrays as .npz",
    ".pvtu": "parts of a mesh are not read: merge them, in ParaView by Merge Blocks, into a .vtu",
    ".bin": "binary graphs of DGL are not read: use hpcgnn.convert.from_dgl in Python",
}


def _module(name: str = "edge_list") -> Any:
    return import_module(f"hpcgnn.convert.formats.{name}")


def detect(path: Path) -> tuple[str, str]:
    """Detect the format of `path`; return its name and the reason. `InputError` if none fits."""
    if str(path).startswith("pyg:"):
        return "torch-geometric", "the name begins with pyg:"
    if path.is_dir():
        return _detect_folder(path)
    if path.name.startswith("ind."):
        return "planetoid", "the name begins with ind."
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    if path.name in _FOLDERS:
        return _FOLDERS[path.name], f"it is a {path.name}"
    plain = path.stem if path.suffix.lower() in _PACKED else path.name
    ending = Path(plain).suffix.lower()
    if ending in _REFUSED:
        raise InputError(f"{path}: is not converted; {_REFUSED[ending]}")
    for name, form in FORMATS.items():
        if ending in form.endings:
            return name, f"the name ends with {ending}"
    if ending in _TEXT_ENDINGS:
        return _detect_text(path)
    raise InputError(f"{path}: its name tells no format; choose one with --format: {_names()}")


def _detect_folder(path: Path) -> tuple[str, str]:
    for mark, name in _FOLDERS.items():
        if any(path.glob(mark.replace("NAME", "*"))):
            return name, f"the folder holds {mark}"
    if _module().triple_files(path):
        return "triples", "the folder holds files that end with train, valid and test"
    *marks, last = (*_FOLDERS, "train.txt with valid.txt and test.txt")
    raise InputError(
        f"{path}: holds none of {', '.join(marks)} and {last}; give the folder or file of one graph"
    )


def _detect_text(path: Path) -> tuple[str, str]:
    if path.suffix.lower() not in PARQUET:
        with closing(read_pieces(path, len(MATRIX_MARKET))) as pieces:
            if next(pieces, b"").decode("latin1").lower() == MATRIX_MARKET:
                return "matrix-market", "the first line is its banner"
    return _module().first_line_says(path)


def convert(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format_name: str,
    options: ConvertOptions | None = None,
    ranks: RankGroup = ONE_PROCESS,
    resume: bool = False,
) -> Report:
    """Convert `path`, in the format `format_name`, into the store `out`; collective on `ranks`.

    An existing file at `out` is replaced once the new one is complete; `resume` is that of
    `write_store`. Raises `InputError` for faulty input, with the file, place and remedy.
    """
    out_path, chosen = Path(out), options or ConvertOptions()
    with ranks.agree():
        if ranks.rank == 0:
            check_output(out_path)
    source, chosen = _read_together(Path(path), format_name, chosen, ranks)
    with ranks.agree():
        if ranks.rank == 0:
            check_output(out_path, *source.inputs)
    return write_store(source, out_path, chosen, format_name, ranks, resume=resume)


def _read_together(
    path: Path, name: str, options: ConvertOptions, ranks: RankGroup
) -> tuple[GraphSource, ConvertOptions]:
    """Read `path` on all ranks if possible, else on the first; also return the readers' options."""
    why, options = f"the format {name}", replace(options, ranks=ONE_PROCESS)
    if not ranks.moves_rows or (name in FORMATS and FORMATS[name].divided):
        together = replace(options, ranks=ranks)
        try:
            return _read_source(path, name, together), together
        except OneReaderError as reason:
            why = str(reason)
    source = GraphSource(path=path, edges=_nothing, inputs=())
    with ranks.agree():
        if ranks.rank == 0:
            report(f"{path}: read by the first rank alone ({why}), sorted by all")
            # Orders number the edges as they are read, so reading cannot start in the middle.
            read = _read_source(path, name, options)
            source = replace(read, edges_after=None, sample=None)
    # The other ranks need the rest of the source to take part in the sorting.
    without_data = replace(source, edges=_nothing, nodes=NodeArrays(), targets=None, inputs=())
    shared = ranks.from_first(lambda: without_data)
    return source if ranks.rank == 0 else shared, options


def _nothing() -> EdgeStream:
    yield from ()


def _read_source(path: Path, name: str, options: ConvertOptions) -> GraphSource:
    form = FORMATS.get(name)
    if form is None:
        raise InputError(f"--format {name}: is none of {_names()}")
    if path.name in _FOLDERS and path.is_file():
        # The file by which the format was detected stands for its folder.
        path = path.parent
    source = form.read(path, options)
    if name not in _TABLES and (options.nodes or options.split_files):
        source = _module().with_nodes(source, options)
    with options.ranks.agree():
        return with_fields(source, options)


def _names() -> str:
    return ", ".join(FORMATS)
