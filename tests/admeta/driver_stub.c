/* A CUDA driver that runs nothing and remembers the last launch, so that Triton's own way to it can be tested. */
#include <stddef.h>
#include <stdint.h>

typedef int result;
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned attribute_count;
} config;

static struct {
  uint64_t count, grid, threads, stream, function, arguments[3];
} seen;

const void *last_launch(void) { return &seen; }

result cuLaunchKernelEx(const config *c, void *function, void **parameters, void **extra) {
  seen.count++;
  seen.grid = c->grid[0];
  seen.threads = c->block[0];
  seen.stream = (uint64_t)c->stream;
  seen.function = (uint64_t)function;
  for (int i = 0; i < 3; i++) seen.arguments[i] = *(uint64_t *)parameters[i];
  return 0;
}

result cuCtxGetCurrent(void **c) { *c = (void *)1; return 0; }
result cuCtxSetCurrent(void *c) { return 0; }
result cuCtxGetDevice(int *d) { *d = 0; return 0; }
result cuCtxGetLimit(size_t *v, int limit) { *v = 1 << 20; return 0; }
result cuCtxSetLimit(int limit, size_t v) { return 0; }
result cuDeviceGet(int *d, int i) { *d = i; return 0; }
result cuDeviceGetAttribute(int *v, int attribute, int d) { *v = 232448; return 0; }
result cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
result cuDriverGetVersion(int *v) { *v = 13000; return 0; }
result cuFuncGetAttribute(int *v, int attribute, void *f) { *v = attribute == 0 ? 1024 : 0; return 0; }
result cuFuncSetAttribute(void *f, int attribute, int v) { return 0; }
result cuFuncSetCacheConfig(void *f, int v) { return 0; }
result cuGetErrorString(int error, const char **s) { *s = "none"; return 0; }
result cuInit(unsigned flags) { return 0; }
result cuModuleGetFunction(void **f, void *m, const char *name) { static uintptr_t n = 100; *f = (void *)++n; return 0; }
result cuModuleLoadData(void **m, const void *image) { *m = (void *)1; return 0; }
result cuModuleUnload(void *m) { return 0; }
result cuOccupancyMaxActiveClusters(int *n, void *f, void *c) { *n = 1; return 0; }
result cuPointerGetAttribute(void *out, int attribute, uint64_t p) { *(uint64_t *)out = p; return 0; }
result cuTensorMapEncodeTiled(void *map) { return 0; }
