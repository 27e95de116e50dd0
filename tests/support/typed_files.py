"""A small graph with node types, in every format that has them."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.support.graph_files import table, write_gz

__all__ = ["LittleTyped"]

EdgeType = tuple[str, str, str]


@dataclass
class LittleTyped:
    """Four authors, six papers, three fields and no venue; papers have classes and a split.

    Authors and papers have features of different width, fields none, venues three columns but no
    rows. Two edge types share the relation `cites`.
    """

    counts: dict[str, int] = field(
        default_factory=lambda: {"author": 4, "paper": 6, "field": 3, "venue": 0}
    )
    edges: dict[EdgeType, Any] = field(
        default_factory=lambda: {
            ("author", "writes", "paper"): np.array([[0, 1, 3, 3], [5, 0, 2, 0]]),
            ("paper", "cites", "paper"): np.array([[0, 4], [1, 2]]),
            ("paper", "about", "field"): np.array([[0, 5, 5], [2, 0, 1]]),
            ("author", "cites", "author"): np.array([[2], [0]]),
            ("paper", "in", "venue"): np.zeros((2, 0), np.int64),
        }
    )
    relations = ("writes", "paper-cites-paper", "about", "author-cites-author", "in")
    labels = np.array([2, 0, 1, -1, 1, 0])
    split = np.array([1, 1, 2, 0, 3, 3])
    parts = (("train", 1), ("valid", 2), ("test", 3))

    @property
    def features(self) -> dict[str, Any]:
        rng = np.random.default_rng(29)
        author = rng.integers(0, 9, (4, 2)).astype(np.float32)
        paper = rng.integers(0, 9, (6, 3)).astype(np.float32)
        return {"author": author, "paper": paper, "field": None, "venue": np.zeros((0, 3), "f4")}

    @property
    def starts(self) -> dict[str, int]:
        ends = np.cumsum(list(self.counts.values())).tolist()
        return dict(zip(self.counts, [0, *ends[:-1]], strict=True))

    @property
    def types(self) -> Any:
        return np.repeat(np.arange(4), list(self.counts.values()))

    def everywhere(self, values: Any, none: int) -> Any:
        """Return the values of papers as those of all nodes."""
        whole = np.full(13, none)
        whole[4:10] = values
        return whole

    def ends(self, edge_type: EdgeType) -> Any:
        """Return the edges of a type [2, E] with the numbers of the whole graph."""
        shifts = [[self.starts[edge_type[0]]], [self.starts[edge_type[2]]]]
        return self.edges[edge_type] + np.array(shifts)

    def write_ogb(self, folder: Path) -> Path:
        raw, split = folder / "raw", folder / "split" / "time"
        names = ",".join(self.counts)
        counts = ",".join(map(str, self.counts.values()))
        write_gz(raw / "num-node-dict.csv.gz", f"{names}\n{counts}\n")
        triplets = "".join(",".join(each) + "\n" for each in self.edges)
        write_gz(raw / "triplet-type-list.csv.gz", triplets)
        write_gz(raw / "nodetype-has-feat.csv.gz", f"{names}\nTrue,True,False,False\n")
        write_gz(raw / "nodetype-has-label.csv.gz", f"{names}\nFalse,True,False,False\n")
        for edge_type, ends in self.edges.items():
            place = raw / "relations" / "___".join(edge_type)
            write_gz(place / "edge.csv.gz", table(ends.T))
            write_gz(place / "num-edge-list.csv.gz", f"{ends.shape[1]}\n")
            write_gz(place / "edge_reltype.csv.gz", "0\n" * ends.shape[1])
        for name in ("author", "paper"):
            write_gz(raw / "node-feat" / name / "node-feat.csv.gz", table(self.features[name]))
        labels = np.where(self.labels < 0, np.nan, self.labels)
        write_gz(raw / "node-label" / "paper" / "node-label.csv.gz", table(labels))
        write_gz(split / "nodetype-has-split.csv.gz", f"{names}\nFalse,True,False,False\n")
        for part, code in self.parts:
            ids = np.flatnonzero(self.split == code)
            write_gz(split / "paper" / f"{part}.csv.gz", table(ids))
        return folder

    def npz_arrays(self) -> dict[str, Any]:
        ends = [self.ends(edge_type) for edge_type in self.edges]
        sizes = [each.shape[1] for each in ends]
        features = {f"x_{name}": x for name, x in self.features.items() if x is not None}
        return {
            "edge_index": np.concatenate(ends, axis=1),
            "etype": np.repeat(np.arange(len(ends)), sizes),
            "etypes": np.array(self.relations),
            "node_type": self.types,
            "node_types": np.array(list(self.counts)),
            "y": self.everywhere(self.labels, -1),
            "split": self.everywhere(self.split, 0),
            **features,
        }

    def papers(self) -> dict[str, Any]:
        masks = {
            f"{'val' if part == 'valid' else part}_mask": torch.tensor(self.split == code)
            for part, code in self.parts
        }
        return {"y": torch.tensor(self.labels), **masks}

    def hetero_data(self) -> "HeteroData":
        stores: dict[Any, Any] = {
            name: SimpleNamespace(num_nodes=count) for name, count in self.counts.items()
        }
        for name, x in self.features.items():
            stores[name].x = None if x is None else torch.tensor(x)
        vars(stores["paper"]).update(self.papers())
        for edge_type, ends in self.edges.items():
            stores[edge_type] = SimpleNamespace(edge_index=torch.tensor(ends))
        return HeteroData(stores)

    def dgl_graph(self) -> "HeteroGraph":
        data: dict[str, dict[str, Any]] = {
            name: {} if x is None else {"feat": torch.tensor(x)}
            for name, x in self.features.items()
        }
        papers = self.papers()
        data["paper"] |= {"label": papers.pop("y"), **papers}
        return HeteroGraph(self, data)


class HeteroData:
    """The interface of `HeteroData` of torch-geometric."""

    def __init__(self, stores: dict[Any, Any]) -> None:
        self.stores = stores
        self.node_types = [key for key in stores if isinstance(key, str)]
        self.edge_types = [key for key in stores if not isinstance(key, str)]

    def __getitem__(self, key: Any) -> Any:
        return self.stores[key]


class HeteroGraph:
    """The interface of a DGL graph with node types."""

    def __init__(self, little: LittleTyped, data: dict[str, dict[str, Any]]) -> None:
        self._little = little
        self.ntypes = list(little.counts)
        self.canonical_etypes = list(little.edges)
        self.edges = Edges(little)
        self.nodes = {name: SimpleNamespace(data=each) for name, each in data.items()}

    def num_nodes(self, name: str) -> int:
        return self._little.counts[name]


class Edges:
    """The interface of `graph.edges` of DGL: a call for the ends, and the data of each type."""

    def __init__(self, little: LittleTyped) -> None:
        self._little = little

    def __call__(self, *, order: str, etype: EdgeType) -> Any:
        assert order == "eid"
        return tuple(torch.tensor(ends) for ends in self._little.edges[etype])

    def __getitem__(self, etype: EdgeType) -> Any:
        return SimpleNamespace(data={})
