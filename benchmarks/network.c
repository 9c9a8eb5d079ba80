/* A network between the nodes that MPI_ROLLOUT_NODES simulates, and a count of what rank 0 of the job does:
 *     mpicc -O2 -shared -fPIC -o network.so network.c; LD_PRELOAD=./network.so mpirun ...
 * A rank sleeps before it answers rank 0 of its communicator on another node: NETWORK_LATENCY_S twice, for the order and
 * the answer, and NETWORK_S_PER_BYTE for each byte.  Rank 0 does not sleep: a network card sends for it.  Rank 0 of the
 * job appends a line of JSON to the file NETWORK_COUNTS.  Under Open MPI; MPICH has other names, for large counts. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { ROOM = 65536 };
typedef struct { MPI_Request request; MPI_Comm comm; int peer; double bytes; int is_send; } Made;
static Made made[ROOM];  // Persistent requests, by their hash.
static double messages, starts, looks;

static double setting(const char *name) { return getenv(name) ? atof(getenv(name)) : 0; }
static double bytes_of(int count, MPI_Datatype type) { int size; return PMPI_Type_size(type, &size), (double)count * size; }

static int node_of(MPI_Comm comm, int rank) {
    MPI_Group here, all; int world, size;
    PMPI_Comm_size(MPI_COMM_WORLD, &size), PMPI_Comm_group(comm, &here), PMPI_Comm_group(MPI_COMM_WORLD, &all);
    PMPI_Group_translate_ranks(here, 1, &rank, all, &world), PMPI_Group_free(&here), PMPI_Group_free(&all);
    return world * (int)setting("MPI_ROLLOUT_NODES") / size;
}

static void carry(MPI_Comm comm, int peer, double bytes, int num_trips) {
    int rank; PMPI_Comm_rank(comm, &rank);
    messages += 1;
    double s = num_trips * setting("NETWORK_LATENCY_S") + bytes * setting("NETWORK_S_PER_BYTE");
    if (rank == 0 || peer != 0 || s <= 0 || node_of(comm, rank) == node_of(comm, peer)) return;
    nanosleep(&(struct timespec){(time_t)s, (s - (time_t)s) * 1e9}, NULL);
}

static Made *find(MPI_Request request) {
    size_t i = (size_t)request / 64 % ROOM;
    while (made[i].request && made[i].request != request) i = (i + 1) % ROOM;
    return &made[i];
}
static void begin(MPI_Request request) {
    Made *it = find(request);
    if (it->is_send) carry(it->comm, it->peer, it->bytes, 2); else messages += 1;
}

#define INIT(NAME, IS_SEND, CONST) int MPI_##NAME(CONST void *b, int n, MPI_Datatype t, int peer, int tag, MPI_Comm c, MPI_Request *r) { \
    int code = PMPI_##NAME(b, n, t, peer, tag, c, r); *find(*r) = (Made){*r, c, peer, bytes_of(n, t), IS_SEND}; return code; }
INIT(Send_init, 1, const) INIT(Recv_init, 0, )
int MPI_Start(MPI_Request *r) { starts++; begin(*r); return PMPI_Start(r); }
int MPI_Startall(int n, MPI_Request r[]) { starts++; for (int i = 0; i < n; i++) begin(r[i]); return PMPI_Startall(n, r); }
int MPI_Isend(const void *b, int n, MPI_Datatype t, int peer, int tag, MPI_Comm c, MPI_Request *r) {
    starts++; carry(c, peer, bytes_of(n, t), 2); return PMPI_Isend(b, n, t, peer, tag, c, r); }
int MPI_Irecv(void *b, int n, MPI_Datatype t, int peer, int tag, MPI_Comm c, MPI_Request *r) {
    starts++; messages += 1; return PMPI_Irecv(b, n, t, peer, tag, c, r); }
int MPI_Mrecv(void *b, int n, MPI_Datatype t, MPI_Message *m, MPI_Status *s) {
    starts++; messages += 1; return PMPI_Mrecv(b, n, t, m, s); }
int MPI_Testsome(int n, MPI_Request r[], int *m, int i[], MPI_Status s[]) { looks++; return PMPI_Testsome(n, r, m, i, s); }
int MPI_Waitall(int n, MPI_Request r[], MPI_Status s[]) { starts++; return PMPI_Waitall(n, r, s); }

int MPI_Finalize(void) {
    int rank; struct rusage used; const char *path = getenv("NETWORK_COUNTS");
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank), getrusage(RUSAGE_SELF, &used);
    FILE *file = rank == 0 && path ? fopen(path, "a") : NULL;
    if (file) fprintf(file, "{\"messages\": %.0f, \"calls\": %.0f, \"looks\": %.0f, \"peak_kb\": %ld}\n", messages, starts, looks, used.ru_maxrss), fclose(file);
    return PMPI_Finalize();
}
