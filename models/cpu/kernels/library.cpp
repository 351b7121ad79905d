// What Python calls.

#include "network.h"

// Functions are found by name: what they take stands in native.py.
#define EXPORT(NAME, ...) extern "C" void* const adt_##NAME = (void*)&__VA_ARGS__;

#define NETWORKS(NAME, S, T, W)          \
  EXPORT(pack_##NAME, pack<S, T, W>)     \
  EXPORT(linear_##NAME, linear<S, T, W>) \
  EXPORT(run_##NAME, run<S, T, W>)

// What Python must know, or have alike.
extern "C" const int64_t adt_vector_bytes = BYTES;
extern "C" const int64_t adt_size_Pass = sizeof(Pass);

NETWORKS(fp32, float, float, float)
NETWORKS(fp64, double, double, double)
NETWORKS(bf16, bfloat16, float, bfloat16)
NETWORKS(fp32_bf16, float, float, bfloat16)
NETWORKS(fp32_fp16, float, float, float16)
