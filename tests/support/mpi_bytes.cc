/* Counts the bytes that this process hands to MPI, by MPI's profiling interface.
 *
 * Preloaded before the MPI library, it sees every call of a program, whoever makes it. A message
 * counts once, where it is sent; a broadcast once for each other rank; what a rank gives to a
 * reduction counts once, and nothing on the root that keeps it. Calls that move bytes and are not
 * counted here are themselves counted, so that a test can require that there are none. Every call
 * is defined twice from one text where MPI has version 4: with counts that are int, and with large
 * ones.
 */
#ifndef CALL
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

}  // extern "C"

template <class Count>
static void add_neighbours(const Count counts[], MPI_Datatype type, MPI_Comm comm) {
  int in, out, weighted;
  PMPI_Dist_graph_neighbors_count(comm, &in, &out, &weighted);
  for (int i = 0; i < out; i++) add(counts[i], type);
}

#define COUNT int
#define PLACE int
#define CALL(name) MPI_##name
#define PASS_ON(name) PMPI_##name
#include "mpi_bytes.cc"
#if MPI_VERSION >= 4
#undef COUNT
#undef PLACE
#undef CALL
#undef PASS_ON
#define COUNT MPI_Count
#define PLACE MPI_Aint
#define CALL(name) MPI_##name##_c
#define PASS_ON(name) PMPI_##name##_c
#include "mpi_bytes.cc"
#endif

#else
extern "C" {

#undef MESSAGE
#undef SEND
#undef ISEND
#define MESSAGE (const void *data, COUNT count, MPI_Datatype type, int dest, int tag, MPI_Comm comm
#define SEND(name)                                            \
  int CALL(name) MESSAGE) {                                   \
    if (dest != MPI_PROC_NULL) add(count, type);              \
    return PASS_ON(name)(data, count, type, dest, tag, comm); \
  }
#define ISEND(name)                                                    \
  int CALL(name) MESSAGE, MPI_Request *request) {                      \
    if (dest != MPI_PROC_NULL) add(count, type);                       \
    return PASS_ON(name)(data, count, type, dest, tag, comm, request); \
  }

SEND(Send)
SEND(Ssend)
SEND(Bsend)
SEND(Rsend)
ISEND(Isend)
ISEND(Issend)
ISEND(Ibsend)
ISEND(Irsend)

int CALL(Bcast)(void* data, COUNT count, MPI_Datatype type, int root, MPI_Comm comm) {
  if (is_root(comm, root)) add((long long)count * (size_of(comm) - 1), type);
  return PASS_ON(Bcast)(data, count, type, root, comm);
}

int CALL(Ibcast)(void* data, COUNT count, MPI_Datatype type, int root, MPI_Comm comm,
                 MPI_Request* request) {
  if (is_root(comm, root)) add((long long)count * (size_of(comm) - 1), type);
  return PASS_ON(Ibcast)(data, count, type, root, comm, request);
}

int CALL(Reduce)(const void* data, void* total, COUNT count, MPI_Datatype type, MPI_Op op, int root,
                 MPI_Comm comm) {
  if (!is_root(comm, root)) add(count, type);
  return PASS_ON(Reduce)(data, total, count, type, op, root, comm);
}

int CALL(Ireduce)(const void* data, void* total, COUNT count, MPI_Datatype type, MPI_Op op,
                  int root, MPI_Comm comm, MPI_Request* request) {
  if (!is_root(comm, root)) add(count, type);
  return PASS_ON(Ireduce)(data, total, count, type, op, root, comm, request);
}

int CALL(Allreduce)(const void* data, void* total, COUNT count, MPI_Datatype type, MPI_Op op,
                    MPI_Comm comm) {
  if (size_of(comm) > 1) add(count, type);
  return PASS_ON(Allreduce)(data, total, count, type, op, comm);
}

int CALL(Neighbor_alltoallv)(const void* data, const COUNT counts[], const PLACE places[],
                             MPI_Datatype type, void* into, const COUNT into_counts[],
                             const PLACE into_places[], MPI_Datatype into_type, MPI_Comm comm) {
  add_neighbours(counts, type, comm);
  return PASS_ON(Neighbor_alltoallv)(data, counts, places, type, into, into_counts, into_places,
                                     into_type, comm);
}

int CALL(Ineighbor_alltoallv)(const void* data, const COUNT counts[], const PLACE places[],
                              MPI_Datatype type, void* into, const COUNT into_counts[],
                              const PLACE into_places[], MPI_Datatype into_type, MPI_Comm comm,
                              MPI_Request* request) {
  add_neighbours(counts, type, comm);
  return PASS_ON(Ineighbor_alltoallv)(data, counts, places, type, into, into_counts, into_places,
                                      into_type, comm, request);
}

/* Calls that no training step makes. */
#undef DATA
#undef INTO
#undef GIVEN
#undef UNKNOWN
#define DATA const void *data, COUNT count, MPI_Datatype type
#define INTO void *into, COUNT into_count, MPI_Datatype into_type
#define GIVEN data, count, type, into, into_count, into_type
#define UNKNOWN(name, parameters, arguments) \
  int CALL(name) parameters {                \
    unknown_calls++;                         \
    return PASS_ON(name) arguments;          \
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
        (DATA, void* into, const COUNT counts[], const PLACE places[], MPI_Datatype into_type,
         MPI_Comm comm),
        (data, count, type, into, counts, places, into_type, comm))
UNKNOWN(Gatherv,
        (DATA, void* into, const COUNT counts[], const PLACE places[], MPI_Datatype into_type,
         int root, MPI_Comm comm),
        (data, count, type, into, counts, places, into_type, root, comm))
UNKNOWN(Alltoallv,
        (const void* data, const COUNT counts[], const PLACE places[], MPI_Datatype type,
         void* into, const COUNT into_counts[], const PLACE into_places[], MPI_Datatype into_type,
         MPI_Comm comm),
        (data, counts, places, type, into, into_counts, into_places, into_type, comm))
UNKNOWN(Iallreduce,
        (const void* data, void* total, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (data, total, count, type, op, comm, request))
UNKNOWN(Sendrecv,
        (DATA, int dest, int tag, void* into, COUNT into_count, MPI_Datatype into_type, int source,
         int into_tag, MPI_Comm comm, MPI_Status* status),
        (data, count, type, dest, tag, into, into_count, into_type, source, into_tag, comm, status))
UNKNOWN(Put,
        (DATA, int rank, MPI_Aint place, COUNT into_count, MPI_Datatype into_type, MPI_Win window),
        (data, count, type, rank, place, into_count, into_type, window))
UNKNOWN(Get, (INTO, int rank, MPI_Aint place, COUNT count, MPI_Datatype type, MPI_Win window),
        (into, into_count, into_type, rank, place, count, type, window))
}
#endif
