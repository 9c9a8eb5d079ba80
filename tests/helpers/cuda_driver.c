/* A stand-in for NVIDIA's driver, libcuda.so.1: it shows as many GPUs as FAKE_GPUS says. */
#include <stdlib.h>

int cuInit(unsigned flags) { return flags; }

int cuDeviceGetCount(int *count) {
    *count = atoi(getenv("FAKE_GPUS"));
    return 0;
}
