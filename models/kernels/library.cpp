// What Python calls.

#include "recall.h"
#include "trees.h"
#include "whole.h"

// Functions are found by name: what they take stands in native.py.
#define EXPORT(NAME, ...) extern "C" void* const adt_##NAME = (void*)&__VA_ARGS__;

#define NETWORKS(NAME, S, T)          \
  EXPORT(pack_##NAME, pack<S, T>)     \
  EXPORT(linear_##NAME, linear<S, T>) \
  EXPORT(run_##NAME, run<S, T>)       \
  EXPORT(log_p_##NAME, log_p<S, T>)   \
  EXPORT(read_##NAME, read<S, T>)     \
  EXPORT(before_##NAME, before<S>)

#define ROUNDS(NAME, T)                \
  EXPORT(children_##NAME, children<T>) \
  EXPORT(visible_##NAME, visible)      \
  EXPORT(extend_##NAME, extend<T>)     \
  EXPORT(best_##NAME, best<T>)         \
  EXPORT(ended_##NAME, ended<T>)       \
  EXPORT(prune_##NAME, prune<T>)       \
  EXPORT(open_##NAME, open<T>)         \
  EXPORT(graft_##NAME, graft<T>)       \
  EXPORT(move_##NAME, move<T>)         \
  EXPORT(ahead_##NAME, ahead<T>)       \
  EXPORT(remember_##NAME, remember<T>) \
  EXPORT(lineage_##NAME, lineage<T>)   \
  EXPORT(recall_##NAME, recall<T>)     \
  EXPORT(mix_##NAME, mix<T>)

// What Python must know, or have alike.
extern "C" const int64_t adt_vector_bytes = BYTES;
extern "C" const int64_t adt_size_Pass = sizeof(Pass), adt_size_Whole = sizeof(Whole);

NETWORKS(fp32, float, float)
NETWORKS(fp64, double, double)
NETWORKS(bf16, bfloat16, float)
ROUNDS(fp32, float)
ROUNDS(fp64, double)
