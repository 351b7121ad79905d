// Attention of a few tokens to a cache; the threads of a team share each step and meet after it.

#pragma once

#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t MOST_SIZE = 256;    // of a head
constexpr int64_t MOST_QUERIES = 32;  // that read a head together

// A pass over tokens (rows, tokens); see `Pass` in fused.py.
struct Pass {
  int64_t rows, tokens, hidden, intermediate;
  int64_t heads, kv_heads, size;                  // size: of a head
  int64_t layer_stride, row_stride, head_stride;  // of keys and values
  int64_t mask_row, mask_token;                   // strides
  int64_t pairs, swin;  // neighbouring channels rotate together; Swin-norm
  int64_t count, kept;  // layers, and states that are kept
  double eps;
  const void* rotation;
  const int64_t* positions;
  const void* mask;
  const int64_t *written;  // slots of the new keys and values
  const int64_t *ends;     // slots that each row has
  const int64_t *numbers;  // after which layers states are kept
  const struct Layer* layers;
  const void* norm;  // of the outcome and of states; null for none
  void* memory;      // keys and values of every layer, in turn
};

template <typename T>
inline void turn(const T* x, const T* cos, const T* sin, int64_t size, bool pairs, T* out) {
  const int64_t half = size / 2;
  if (pairs) {
    for (int64_t i = 0; i < size; i += 2) {
      const T left = x[i], right = x[i + 1];
      out[i] = left * cos[i] + right * sin[i];
      out[i + 1] = right * cos[i + 1] + left * sin[i + 1];
    }
  } else {
    for (int64_t i = 0; i < half; ++i) {
      const T left = x[i], right = x[half + i];
      out[i] = left * cos[i] + right * sin[i];
      out[half + i] = right * cos[half + i] + left * sin[half + i];
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
    const int64_t cached = row * s.row_stride + s.written[place] * size;
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

// What a query reads: its channels, its row of the mask, and where the outcome goes.
template <typename S, typename T>
struct Query {
  const T *channels, *mask;
  S* out;
};

// Scores (WIDE) of a query with the keys at slots first ...; those from `stop` on mean nothing.
template <typename T, int DEEP>
inline Vec<T> scores_of(const T* channels, const T* keys, int64_t first, int64_t stop) {
  constexpr int64_t D = DEEP * WIDE<T>;
  Vec<T> query[DEEP], products[WIDE<T>];
  for (int d = 0; d < DEEP; ++d) query[d] = load<T>(channels + d * WIDE<T>);
  for (int64_t i = 0; i < WIDE<T>; ++i) {
    const T* key = keys + (first + i < stop ? first + i : first) * D;
    products[i] = load<T>(key) * query[0];
    for (int d = 1; d < DEEP; ++d)
      products[i] = multiply_add(load<T>(key + d * WIDE<T>), query[d], products[i]);
  }
  return sums<T>(products) * (1 / std::sqrt(T(D)));
}

// Scores (room) become weights exp(score + mask - greatest).
template <typename T>
void weigh(T* scores, const T* mask, int64_t slots, int64_t room) {
  for (int64_t i = 0; i < slots; ++i) scores[i] += mask[i];
  for (int64_t i = slots; i < room; ++i) scores[i] = -std::numeric_limits<T>::infinity();
  Vec<T> greatest = load<T>(scores);
  for (int64_t i = WIDE<T>; i < room; i += WIDE<T>) {
    const Vec<T> next = load<T>(scores + i);
    greatest = next > greatest ? next : greatest;
  }
  T most = greatest[0];
  for (int i = 1; i < WIDE<T>; ++i) most = greatest[i] > most ? greatest[i] : most;
  for (int64_t i = 0; i < room; i += WIDE<T>)
    store<T>(scores + i, exponential<T>(load<T>(scores + i) - most));
}

// Add values at slots first to stop - 1, times their weights, to what MANY queries have found, and
// the weights to their totals. Slots come one after the other: those that a query does not see add
// zeros, so its sums have the same bits wherever they stand between the others.
template <typename T, int DEEP, int MANY>
inline void add_values(const T* values, int64_t first, int64_t stop, const T* weights,
                       int64_t room, T* found, T* totals) {
  constexpr int64_t D = DEEP * WIDE<T>;
  Vec<T> sums[MANY][DEEP];
  T added[MANY];
  for (int q = 0; q < MANY; ++q) added[q] = totals[q];
  for (int q = 0; q < MANY; ++q)
    for (int d = 0; d < DEEP; ++d) sums[q][d] = load<T>(found + q * D + d * WIDE<T>);
  for (int64_t slot = first; slot < stop; ++slot) {
    for (int q = 0; q < MANY; ++q) added[q] += weights[q * room + slot];
    for (int d = 0; d < DEEP; ++d) {
      const Vec<T> value = load<T>(values + slot * D + d * WIDE<T>);
      for (int q = 0; q < MANY; ++q)
        sums[q][d] = multiply_add(value, spread<T>(weights[q * room + slot]), sums[q][d]);
    }
  }
  for (int q = 0; q < MANY; ++q)
    for (int d = 0; d < DEEP; ++d) store<T>(found + q * D + d * WIDE<T>, sums[q][d]);
  for (int q = 0; q < MANY; ++q) totals[q] = added[q];
}

// Ask for the next rows (WIDE, D), which lie on another page of memory.
template <typename T, int DEEP>
inline void announce(const T* rows) {
  for (int64_t i = 0; i < WIDE<T> * DEEP; ++i) __builtin_prefetch(rows + i * WIDE<T>);
}

// Attention of some queries of a head to all keys: out = softmax(q k + mask) v. Keys and values are
// read once, a few at a time. room: scores (count, slots), padded, and what was found (count, D).
template <typename S, typename T, int DEEP>
void read_head(const Query<S, T>* queries, int64_t count, const T* keys, const T* values,
               int64_t slots, std::vector<T>& memory) {
  constexpr int64_t D = DEEP * WIDE<T>;
  const int64_t room = (slots + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
  memory.assign(count * (room + D), T(0));
  T *scores = memory.data(), *found = scores + count * room;
  T totals[MOST_QUERIES] = {};
  for (int64_t slot = 0; slot < slots; slot += WIDE<T>) {
    const bool last = slot + WIDE<T> >= slots;
    announce<T, DEEP>(last ? values : keys + (slot + WIDE<T>) * D);
    for (int64_t q = 0; q < count; ++q)
      store<T>(scores + q * room + slot,
               scores_of<T, DEEP>(queries[q].channels, keys, slot, slots));
  }
  for (int64_t q = 0; q < count; ++q)
    weigh(scores + q * room, queries[q].mask, slots, room);
  for (int64_t slot = 0; slot < slots; slot += WIDE<T>) {
    const int64_t stop = slot + WIDE<T> < slots ? slot + WIDE<T> : slots;
    announce<T, DEEP>(values + (slot + WIDE<T>) * D);
    int64_t q = 0;
    for (; q + 4 <= count; q += 4)
      add_values<T, DEEP, 4>(values, slot, stop, scores + q * room, room, found + q * D,
                             totals + q);
    for (; q < count; ++q)
      add_values<T, DEEP, 1>(values, slot, stop, scores + q * room, room, found + q * D,
                             totals + q);
  }
  for (int64_t q = 0; q < count; ++q)
    for (int64_t i = 0; i < D; i += WIDE<T>)
      store<T>(queries[q].out + i, load<T>(found + q * D + i) * (1 / totals[q]));
}

template <typename S, typename T, int DEEP>
void attend_to(const Pass& s, const T* queries, const T* keys, const T* values, S* out) {
  const int64_t D = s.size, shared = s.heads / s.kv_heads, own = shared * s.tokens;
  const T* mask = (const T*)s.mask;
  const int64_t heads = s.rows * s.kv_heads;
  const int64_t least = (own + MOST_QUERIES - 1) / MOST_QUERIES, most = (own + 3) / 4;
  const int64_t wanted = (omp_get_num_threads() + heads - 1) / heads;  // work for all threads
  const int64_t parts = wanted < least ? least : wanted < most ? wanted : most;
  const int64_t each = (own + parts - 1) / parts;
  static thread_local std::vector<T> memory;
  // rows differ in length, so threads take heads in turn; the parts of one read the same memory
  const int64_t together = heads < omp_get_num_threads() ? 1 : parts;
#pragma omp for schedule(static, together)
  for (int64_t task = 0; task < heads * parts; ++task) {
    const int64_t first = task % parts * each, head = task / parts % s.kv_heads,
                  row = task / parts / s.kv_heads;
    const int64_t place = row * s.row_stride + head * s.head_stride;
    Query<S, T> asked[MOST_QUERIES];
    int64_t count = 0;
    for (int64_t q = first; q < own && q < first + each; ++q, ++count) {
      const int64_t head_of = head * shared + q / s.tokens, token = q % s.tokens;
      asked[count] = {queries + ((row * s.heads + head_of) * s.tokens + token) * D,
                      mask + row * s.mask_row + token * s.mask_token,
                      out + ((row * s.tokens + token) * s.heads + head_of) * D};
    }
    read_head<S, T, DEEP>(asked, count, keys + place, values + place, s.ends[row], memory);
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
    case 16: return attend_to<S, T, 16>(s, queries, keys, values, out);
    default: return attend_to<S, T, 32>(s, queries, keys, values, out);
  }
}

}  // namespace
