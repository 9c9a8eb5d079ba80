/* An MPI that cannot start and ends the process, as MPICH's does under a launcher that it does not know. */

#include <stdlib.h>

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    (void)argc, (void)argv, (void)required, (void)provided;
    exit(16);
}
