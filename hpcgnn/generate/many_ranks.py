"""The generating command on many ranks: each draws chunks of edges and sorts rows of its own.

Chunk c is drawn by rank c modulo P, and its edges go to the ranks of their rows: P equal ranges.
Those sort them, in files where they outgrow the memory given. Then all hand over their rows in turn
to the one process that writes, as partitioning on many ranks does, and blocks of nodes as if dealt
out, so that all make theirs at the same time. The store does not depend on P.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, RowMap, agree, dealt, in_turn, redistribute
from hpcgnn.console import Progress
from hpcgnn.errors import InputError
from hpcgnn.gallery import NODE_CHUNK, NodeRows, append_nodes
from hpcgnn.generate.command import Streamed, parser, show
from hpcgnn.launch import RankArgumentParser
from hpcgnn.spmd import collective
from hpcgnn.storage import EdgeBuilder, SortedRows, StoreWriter, check_output


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
    """Write the store that `hpcgnn.gallery.write_streamed` writes; rank 0 writes.

    An InputError (a full disk) is raised by the rank that meets it.
    """
    num_nodes, first = made.header.num_nodes, comm.rank == 0
    rows = RowMap(num_nodes * np.arange(comm.size + 1) // comm.size, comm.rank)
    with ExitStack() as stack:
        writer = stack.enter_context(StoreWriter(path, made.header)) if first else None
        scratch = path.absolute().parent
        builder = stack.enter_context(
            EdgeBuilder(num_nodes, memory_bytes=made.memory_bytes, scratch_dir=scratch)
        )
        with Progress("drawing edges", made.edges.num_edges, "edges", quiet=not first) as progress:
            _draw(comm, made, rows, builder, progress)
        with Progress("writing the adjacency", num_nodes, "rows", quiet=not first) as progress:

            def take_rows(block: SortedRows) -> None:
                assert writer is not None, "only rank 0 takes"
                writer.append_rows(block)
                progress.advance(block.num_rows)

            in_turn(comm, builder.blocks(rows.num_local), take_rows)
        with Progress("writing node data", num_nodes, "rows", quiet=not first) as progress:
            mine = range(comm.rank * NODE_CHUNK, num_nodes, comm.size * NODE_CHUNK)

            def take_nodes(block: NodeRows) -> None:
                assert writer is not None, "only rank 0 takes"
                progress.advance(append_nodes(writer, made.nodes, block))

            dealt(comm, map(made.nodes.block, mine), take_nodes)
    with agree(comm):
        # Nobody reports success before the store is there.
        pass


@collective
def _draw(
    comm: Communicator, made: Streamed, rows: RowMap, builder: EdgeBuilder, progress: Progress
) -> None:
    """Draw all chunks, and give `builder` the edges whose rows, counted from 0, are this rank's."""
    edges, num_chunks = made.edges, made.edges.num_chunks
    none = np.empty((2, 0), np.int64)
    for first in range(0, num_chunks, comm.size):
        src, dst = edges.chunk(first + comm.rank) if first + comm.rank < num_chunks else none
        kept = src != dst
        src, dst = src[kept], dst[kept]
        if made.header.undirected:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        src, dst = redistribute(comm, rows.owner(dst), src, dst)
        builder.add(src, dst - rows.start)
        done = min(first + comm.size, num_chunks) - first
        progress.advance(edges.num_edges * done // num_chunks)
        watchdog.beat()
