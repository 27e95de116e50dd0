"""The generating command on many ranks: each draws chunks of edges and sorts rows of its own.

Chunk c is drawn by rank c modulo P, and its edges go to the ranks of their rows: P equal ranges.
Those sort them, in files where they outgrow the memory given, count them, and write them, with what
their nodes have. The store does not depend on P.
"""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn import watchdog
from hpcgnn.by_ranks import store_by_ranks
from hpcgnn.comm import Communicator, RowMap, agree, redistribute
from hpcgnn.console import Progress
from hpcgnn.errors import InputError
from hpcgnn.gallery import NODE_CHUNK, append_nodes
from hpcgnn.generate.command import Streamed, parser, show
from hpcgnn.launch import RankArgumentParser
from hpcgnn.spmd import collective
from hpcgnn.storage import EdgeBuilder, EdgeColumns, ShareSizes, StoreWriter, check_output


@collective
def main(comm: Communicator) -> int:
    """Generate the graph that the command line names; return the exit status."""
    options = parser(RankArgumentParser).parse_args()
    began = time.perf_counter()
    with agree(comm):
        if not hasattr(options, "memory"):
            raise InputError(
                "this kind is made in the memory of one process: start it without mpiexec or srun; "
                "rmat, grid3d and communities are made by many ranks"
            )
        if comm.rank == 0:
            check_output(options.output)
        made = options.generate(options)
    write(comm, options.output, made)
    if comm.rank == 0:
        show(options, time.perf_counter() - began)
    return 0


@collective
def write(comm: Communicator, path: Path, made: Streamed) -> None:
    """Write the store that `hpcgnn.gallery.write_streamed` writes; all ranks write."""
    num_nodes, quiet = made.header.num_nodes, comm.rank > 0
    rows = RowMap(num_nodes * np.arange(comm.size + 1) // comm.size, comm.rank)
    with ExitStack() as stack:
        with agree(comm):
            builder = stack.enter_context(
                EdgeBuilder(
                    num_nodes, memory_bytes=made.memory_bytes, scratch_dir=path.absolute().parent
                )
            )
        with Progress("drawing edges", made.edges.num_edges, "edges", quiet=quiet) as progress:
            _draw(comm, made, rows, builder, progress)
        with agree(comm):
            sizes = ShareSizes(rows.num_local, {"": builder.count(rows.start, rows.stop)})
        declare = partial(_declare, made)
        with store_by_ranks(comm, path, made.header, sizes, declare) as writer, agree(comm):
            _append(writer, made, rows, builder, quiet=quiet)


def _declare(made: Streamed, writer: StoreWriter) -> None:
    writer.append_rows(EdgeColumns().no_rows())
    features, labels, split = made.nodes.block(0)
    append_nodes(writer, made.nodes, (features[:0], labels[:0], split[:0]))


def _append(
    writer: StoreWriter, made: Streamed, rows: RowMap, builder: EdgeBuilder, *, quiet: bool
) -> None:
    """Append this rank's rows; blocks of nodes are made whole where two ranks have some each."""
    with Progress("writing the adjacency", rows.num_local, "rows", quiet=quiet) as progress:
        for block in builder.blocks(rows.start, rows.stop):
            writer.append_rows(block)
            progress.advance(block.num_rows)
            watchdog.beat()
    with Progress("writing node data", rows.num_local, "rows", quiet=quiet) as progress:
        for start in range(rows.start // NODE_CHUNK * NODE_CHUNK, rows.stop, NODE_CHUNK):
            mine = slice(max(0, rows.start - start), rows.stop - start)
            features, labels, split = made.nodes.block(start)
            some = features[mine], labels[mine], split[mine]
            progress.advance(append_nodes(writer, made.nodes, some))
            watchdog.beat()


@collective
def _draw(
    comm: Communicator, made: Streamed, rows: RowMap, builder: EdgeBuilder, progress: Progress
) -> None:
    """Draw all chunks, and give `builder` the edges of this rank's rows."""
    edges, num_chunks = made.edges, made.edges.num_chunks
    none = np.empty((2, 0), np.int64)
    for first in range(0, num_chunks, comm.size):
        src, dst = edges.chunk(first + comm.rank) if first + comm.rank < num_chunks else none
        kept = src != dst
        src, dst = src[kept], dst[kept]
        if made.header.undirected:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        src, dst = redistribute(comm, rows.owner(dst), src, dst)
        with agree(comm):
            builder.add(src, dst)
        done = min(first + comm.size, num_chunks) - first
        progress.advance(edges.num_edges * done // num_chunks)
        watchdog.beat()
