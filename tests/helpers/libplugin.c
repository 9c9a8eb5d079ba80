/* What HDF5 loads when a file names a filter that it does not know: it leaves a file that says so. */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void leave_a_mark(void) { close(open("loaded", O_CREAT | O_WRONLY, 0600)); }
