/* Counts the bytes that this process hands to MPI, by MPI's profiling interface.
 *
 * Preloaded before the MPI library, it sees every call of a program, whoever makes it. A message
 * counts once, where it is sent; a broadcast once for each other rank; what a rank gives to a
 * reduction counts once, and nothing on the root that keeps it. Calls that move bytes and are not
 * counted here are themselves counted, so that a test can require that there are none.
 */
#include <mpi.h>

extern "C" {

static unsigned long long sent_bytes, unknown_calls;

unsigned long long mpi_sent_bytes(void) { return sent_bytes; }
unsigned long long mpi_unknown_calls(void) { return unknown_calls; }

static int size_of(MPI_Comm comm) {
  int size;
  PMPI_Comm_size(comm, &size);
  return size;
}

static int is_root(MPI_Comm comm, int root) {
  int rank;
  PMPI_Comm_rank(comm, &rank);
  return rank == root;
}

static void add(long long count, MPI_Datatype type) {
  int size;
  PMPI_Type_size(type, &size);
  sent_bytes += (unsigned long long)count * (unsigned long long)size;
}

static void add_neighbours(const int counts[], MPI_Datatype type, MPI_Comm comm) {
  int in, out, weighted;
  PMPI_Dist_graph_neighbors_count(comm, &in, &out, &weighted);
  for (int i = 0; i < out; i++) add(counts[i], type);
}

#define MESSAGE (const void *data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm
#define SEND(name)                                          \
  int MPI_##name MESSAGE) {                                 \
    if (dest != MPI_PROC_NULL) add(count, type);            \
    return PMPI_##name(data, count, type, dest, tag, comm); \
  }
#define ISEND(name)                                                  \
  int MPI_##name MESSAGE, MPI_Request *request) {                    \
    if (dest != MPI_PROC_NULL) add(count, type);                     \
    return PMPI_##name(data, count, type, dest, tag, comm, request); \
  }

SEND(Send)
SEND(Ssend)
SEND(Bsend)
SEND(Rsend)
ISEND(Isend)
ISEND(Issend)
ISEND(Ibsend)
ISEND(Irsend)

int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  if (is_root(comm, root)) add((long long)count * (size_of(comm) - 1), type);
  return PMPI_Bcast(data, count, type, root, comm);
}

int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  if (is_root(comm, root)) add((long long)count * (size_of(comm) - 1), type);
  return PMPI_Ibcast(data, count, type, root, comm, request);
}

int MPI_Reduce(const void* data, void* total, int count, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm) {
  if (!is_root(comm, root)) add(count, type);
  return PMPI_Reduce(data, total, count, type, op, root, comm);
}

int MPI_Ireduce(const void* data, void* total, int count, MPI_Datatype type, MPI_Op op, int root,
                MPI_Comm comm, MPI_Request* request) {
  if (!is_root(comm, root)) add(count, type);
  return PMPI_Ireduce(data, total, count, type, op, root, comm, request);
}

int MPI_Allreduce(const void* data, void* total, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  if (size_of(comm) > 1) add(count, type);
  return PMPI_Allreduce(data, total, count, type, op, comm);
}

int MPI_Neighbor_alltoallv(const void* data, const int counts[], const int places[],
                           MPI_Datatype type, void* into, const int into_counts[],
                           const int into_places[], MPI_Datatype into_type, MPI_Comm comm) {
  add_neighbours(counts, type, comm);
  return PMPI_Neighbor_alltoallv(data, counts, places, type, into, into_counts, into_places,
                                 into_type, comm);
}

int MPI_Ineighbor_alltoallv(const void* data, const int counts[], const int places[],
                            MPI_Datatype type, void* into, const int into_counts[],
                            const int into_places[], MPI_Datatype into_type, MPI_Comm comm,
                            MPI_Request* request) {
  add_neighbours(counts, type, comm);
  return PMPI_Ineighbor_alltoallv(data, counts, places, type, into, into_counts, into_places,
                                  into_type, comm, request);
}

/* What no training step calls. */
#define DATA const void *data, int count, MPI_Datatype type
#define INTO void *into, int into_count, MPI_Datatype into_type
#define GIVEN data, count, type, into, into_count, into_type
#define UNKNOWN(name, parameters, arguments) \
  int MPI_##name parameters {                \
    unknown_calls++;                         \
    return PMPI_##name arguments;            \
  }

UNKNOWN(Allgather, (DATA, INTO, MPI_Comm comm), (GIVEN, comm))
UNKNOWN(Iallgather, (DATA, INTO, MPI_Comm comm, MPI_Request* request), (GIVEN, comm, request))
UNKNOWN(Alltoall, (DATA, INTO, MPI_Comm comm), (GIVEN, comm))
UNKNOWN(Ialltoall, (DATA, INTO, MPI_Comm comm, MPI_Request* request), (GIVEN, comm, request))
UNKNOWN(Gather, (DATA, INTO, int root, MPI_Comm comm), (GIVEN, root, comm))
UNKNOWN(Scatter, (DATA, INTO, int root, MPI_Comm comm), (GIVEN, root, comm))
UNKNOWN(Neighbor_allgather, (DATA, INTO, MPI_Comm comm), (GIVEN, comm))
UNKNOWN(Neighbor_alltoall, (DATA, INTO, MPI_Comm comm), (GIVEN, comm))
UNKNOWN(Allgatherv,
        (DATA, void* into, const int counts[], const int places[], MPI_Datatype into_type,
         MPI_Comm comm),
        (data, count, type, into, counts, places, into_type, comm))
UNKNOWN(Gatherv,
        (DATA, void* into, const int counts[], const int places[], MPI_Datatype into_type, int root,
         MPI_Comm comm),
        (data, count, type, into, counts, places, into_type, root, comm))
UNKNOWN(Alltoallv,
        (const void* data, const int counts[], const int places[], MPI_Datatype type, void* into,
         const int into_counts[], const int into_places[], MPI_Datatype into_type, MPI_Comm comm),
        (data, counts, places, type, into, into_counts, into_places, into_type, comm))
UNKNOWN(Iallreduce,
        (const void* data, void* total, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (data, total, count, type, op, comm, request))
UNKNOWN(Sendrecv,
        (DATA, int dest, int tag, void* into, int into_count, MPI_Datatype into_type, int source,
         int into_tag, MPI_Comm comm, MPI_Status* status),
        (data, count, type, dest, tag, into, into_count, into_type, source, into_tag, comm, status))
UNKNOWN(Put,
        (DATA, int rank, MPI_Aint place, int into_count, MPI_Datatype into_type, MPI_Win window),
        (data, count, type, rank, place, into_count, into_type, window))
UNKNOWN(Get, (INTO, int rank, MPI_Aint place, int count, MPI_Datatype type, MPI_Win window),
        (into, into_count, into_type, rank, place, count, type, window))
}
