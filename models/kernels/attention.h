// Attention of a few tokens to a cache; the threads of a team share each step and meet after it.

#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t MOST_SIZE = 256;  // of a head

// A pass over tokens (rows, tokens); see `Pass` in fused.py.
struct Pass {
  int64_t rows, tokens, hidden, intermediate;
  int64_t heads, kv_heads, size;           // size: of a head
  int64_t slots, layer_stride, row_stride, head_stride;  // of keys and values
  int64_t mask_row, mask_token;                          // strides
  int64_t pairs, swin;                     // neighbouring channels rotate together; Swin-norm
  int64_t first, stop, kept;               // layers first to stop - 1; states that are kept
  double eps;
  const void* rotation;
  const int64_t* positions;
  const void* mask;
  const int64_t *places, *numbers;  // numbers: after which layers states are kept
  const struct Layer* layers;
  void* memory;  // keys and values of every layer, in turn
};

template <typename S, typename T>
inline void turn(const T* x, const S* cos, const S* sin, int64_t size, bool pairs, T* out) {
  const int64_t half = size / 2;
  if (pairs) {
    for (int64_t i = 0; i < size; i += 2) {
      const T left = x[i], right = x[i + 1];
      out[i] = left * T(cos[i]) + right * T(sin[i]);
      out[i + 1] = right * T(cos[i + 1]) + left * T(sin[i + 1]);
    }
  } else {
    for (int64_t i = 0; i < half; ++i) {
      const T left = x[i], right = x[half + i];
      out[i] = left * T(cos[i]) + right * T(sin[i]);
      out[half + i] = right * T(cos[half + i]) + left * T(sin[half + i]);
    }
  }
}

// Normalise and rotate queries and keys; store keys and values at their slots of the cache.
//
// qkv: (rows, tokens, heads + 2 kv_heads, size). weight, bias: (heads + kv_heads, size) or null.
// queries: (rows, heads, tokens, size). keys, values: (rows, kv_heads, slots, size).
template <typename S, typename T>
void split_heads(const Pass& s, const S* qkv, const S* weight, const S* bias, T* queries, T* keys,
                 T* values) {
  const int64_t size = s.size;
  const T* rotation = (const T*)s.rotation;
  T normed[MOST_SIZE];
#pragma omp for schedule(static)
  for (int64_t place = 0; place < s.rows * s.tokens; ++place) {
    const int64_t row = place / s.tokens, token = place % s.tokens;
    const S* x = qkv + place * (s.heads + 2 * s.kv_heads) * size;
    const T *cos = rotation + s.positions[place] * 2 * size, *sin = cos + size;
    const int64_t slot = s.places == nullptr ? s.slots - s.tokens + token : s.places[place];
    const int64_t cached = row * s.row_stride + slot * size;
    for (int64_t head = 0; head < s.heads + s.kv_heads; ++head, x += size) {
      T mean = 0, scale = 1;
      if (weight != nullptr) {
        Vec<T> total{}, squares{};
        for (int64_t i = 0; i < size; i += WIDE<T>) total += load<T>(x + i);
        mean = sum<T>(total) / size;
        for (int64_t i = 0; i < size; i += WIDE<T>) {
          const Vec<T> off = load<T>(x + i) - mean;
          squares += off * off;
        }
        scale = 1 / std::sqrt(sum<T>(squares) / size + T(1e-5));
      }
      for (int64_t i = 0; i < size; i += WIDE<T>) {
        Vec<T> found = load<T>(x + i);
        if (weight != nullptr)
          found = (found - mean) * scale * load<T>(weight + head * size + i) +
                  load<T>(bias + head * size + i);
        store<T>(normed + i, found);
      }
      T* to = head < s.heads ? queries + ((row * s.heads + head) * s.tokens + token) * size
                             : keys + cached + (head - s.heads) * s.head_stride;
      turn(normed, cos, sin, size, s.pairs, to);
    }
    for (int64_t head = 0; head < s.kv_heads; ++head, x += size)
      for (int64_t i = 0; i < size; i += WIDE<T>)
        store<T>(values + cached + head * s.head_stride + i, load<T>(x + i));
  }
}

// Attention of some queries of a head to all keys: out = softmax(q k + mask) v.
template <typename S, typename T, int DEEP, int MANY>
void read_head(const T* const* queries, const T* const* masks, S* const* outs, const T* keys,
               const T* values, int64_t slots, T* scores) {
  constexpr int64_t D = DEEP * WIDE<T>;
  const T scale = 1 / std::sqrt(T(D));
  const int64_t room = (slots + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
  for (int64_t slot = 0; slot < slots; ++slot) {
    Vec<T> total[MANY];
    for (int q = 0; q < MANY; ++q) total[q] = Vec<T>{};
    for (int d = 0; d < DEEP; ++d) {
      const Vec<T> key = load<T>(keys + slot * D + d * WIDE<T>);
      for (int q = 0; q < MANY; ++q) total[q] += key * load<T>(queries[q] + d * WIDE<T>);
    }
    for (int q = 0; q < MANY; ++q)
      scores[q * room + slot] = sum<T>(total[q]) * scale + masks[q][slot];
  }
  T shares[MANY];
  for (int q = 0; q < MANY; ++q) {
    T* own = scores + q * room;
    for (int64_t i = slots; i < room; ++i) own[i] = -std::numeric_limits<T>::infinity();
    Vec<T> greatest = load<T>(own);
    for (int64_t i = WIDE<T>; i < room; i += WIDE<T>) {
      const Vec<T> next = load<T>(own + i);
      greatest = next > greatest ? next : greatest;
    }
    T most = greatest[0];
    for (int i = 1; i < WIDE<T>; ++i) most = greatest[i] > most ? greatest[i] : most;
    Vec<T> total{};
    for (int64_t i = 0; i < room; i += WIDE<T>) {
      const Vec<T> share = exponential<T>(load<T>(own + i) - most);
      store<T>(own + i, share);
      total += share;
    }
    shares[q] = 1 / sum<T>(total);
  }
  Vec<T> found[MANY][DEEP];
  for (int q = 0; q < MANY; ++q)
    for (int d = 0; d < DEEP; ++d) found[q][d] = Vec<T>{};
  for (int64_t slot = 0; slot < slots; ++slot) {
    Vec<T> value[DEEP];
    for (int d = 0; d < DEEP; ++d) value[d] = load<T>(values + slot * D + d * WIDE<T>);
    for (int q = 0; q < MANY; ++q)
      for (int d = 0; d < DEEP; ++d) found[q][d] += value[d] * scores[q * room + slot];
  }
  for (int q = 0; q < MANY; ++q)
    for (int d = 0; d < DEEP; ++d) store<T>(outs[q] + d * WIDE<T>, found[q][d] * shares[q]);
}

template <typename S, typename T, int DEEP>
void attend_to(const Pass& s, const T* queries, const T* keys, const T* values, S* out) {
  constexpr int MOST = 4;  // queries that read a key while it is in registers
  const int64_t D = s.size, shared = s.heads / s.kv_heads, slots = s.slots;
  const T* mask = (const T*)s.mask;
  const int64_t room = (slots + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
  const int64_t own = shared * s.tokens;  // queries of a key head
  const int64_t parts = (own + MOST - 1) / MOST;
  static thread_local std::vector<T> scores;
  scores.resize(MOST * room);
#pragma omp for schedule(static)
  for (int64_t task = 0; task < s.rows * s.kv_heads * parts; ++task) {
    const int64_t part = task % parts, head = task / parts % s.kv_heads,
                  row = task / parts / s.kv_heads;
    const T *k = keys + row * s.row_stride + head * s.head_stride,
            *v = values + row * s.row_stride + head * s.head_stride;
    const T *asked[MOST], *masks[MOST];
    S* outs[MOST];
    const int64_t first = part * MOST, count = own - first < MOST ? own - first : MOST;
    for (int64_t q = 0; q < count; ++q) {
      const int64_t head_of = head * shared + (first + q) / s.tokens,
                    token = (first + q) % s.tokens;
      asked[q] = queries + ((row * s.heads + head_of) * s.tokens + token) * D;
      masks[q] = mask + row * s.mask_row + token * s.mask_token;
      outs[q] = out + ((row * s.tokens + token) * s.heads + head_of) * D;
    }
    switch (count) {
      case 4: read_head<S, T, DEEP, 4>(asked, masks, outs, k, v, slots, scores.data()); break;
      case 3: read_head<S, T, DEEP, 3>(asked, masks, outs, k, v, slots, scores.data()); break;
      case 2: read_head<S, T, DEEP, 2>(asked, masks, outs, k, v, slots, scores.data()); break;
      default: read_head<S, T, DEEP, 1>(asked, masks, outs, k, v, slots, scores.data());
    }
  }
}

// Attention of queries to all keys. out: (rows, tokens, heads, size).
template <typename S, typename T>
void attend(const Pass& s, const T* queries, const T* keys, const T* values, S* out) {
  switch (s.size / WIDE<T>) {
    case 1: return attend_to<S, T, 1>(s, queries, keys, values, out);
    case 2: return attend_to<S, T, 2>(s, queries, keys, values, out);
    case 4: return attend_to<S, T, 4>(s, queries, keys, values, out);
    case 8: return attend_to<S, T, 8>(s, queries, keys, values, out);
    default: return attend_to<S, T, 16>(s, queries, keys, values, out);
  }
}

}  // namespace
