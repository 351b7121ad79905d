// Products of a few tokens with packed weights.
//
// A token's product is summed in the same order whatever stands beside it in a pass, so a token has
// the same features, bit by bit, alone and in a draft.

#pragma once

#include <vector>

#include "vectors.h"

// Types: S of tokens, W of weights, T of sums, X of tokens as they are multiplied. Weights in fp32
// that fit into 16 bits are stored so: a few tokens take as long as reading the weights takes.

// WIDEN: the processor multiplies numbers of fp32 faster than pairs of bf16.
#if defined(__AVX512BF16__) && !defined(WIDEN)
#define PAIRS
#include <immintrin.h>
#endif

namespace {

// Tokens of a tile: their sums, two vectors each, stay in registers beside two vectors of weights
// and a number of a token.
constexpr int MOST_TOKENS = REGISTERS == 32 ? 12 : 6;

// A few tokens are multiplied by several panels at a time: a sum waits for its last term, so there
// have to be others meanwhile.
constexpr int FEW = 2, TOGETHER = 2;

// A weight (outputs, depth) lies in panels: (panels, depth, 2, WIDE) of outputs p WIDE ... and
// half + p WIDE ..., so that gate and up of an MLP meet. Where pairs are multiplied, neighbours in
// depth stand together: (panels, depth / 2, 2, WIDE, 2). Missing outputs are 0.
template <typename T>
inline int64_t half_of(int64_t outputs) {
  return ((outputs + 1) / 2 + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
}

#ifdef PAIRS
template <typename S>
constexpr int64_t PAIRED = sizeof(S) == 2 ? 2 : 1;  // neighbours in depth
#else
template <typename S>
constexpr int64_t PAIRED = 1;
#endif

template <typename S, typename T, typename W>
void pack(int64_t outputs, int64_t depth, const W* weight, W* panels) {
  const int64_t half = half_of<T>(outputs);
#pragma omp parallel for
  for (int64_t panel = 0; panel < half / WIDE<T>; ++panel) {
    W* to = panels + panel * depth * 2 * WIDE<T>;
    for (int64_t k = 0; k < depth; k += PAIRED<S>)
      for (int64_t side = 0; side < 2; ++side)
        for (int64_t i = 0; i < WIDE<T>; ++i)
          for (int64_t of = 0; of < PAIRED<S>; ++of) {
            const int64_t output = side * half + panel * WIDE<T> + i;
            *to++ = output < outputs ? weight[output * depth + k + of] : W{};
          }
  }
}

// Ask for what stands a panel further on. With few tokens the processor reads ahead by itself.
template <int MANY>
inline void announce(const void* at, int64_t bytes) {
  if (MANY <= 4) return;
  __builtin_prefetch((const char*)at + bytes, 0, 2);
  if (BYTES == 64) __builtin_prefetch((const char*)at + bytes + BYTES, 0, 2);
}

// Sums of some tokens x with neighbouring panels; left and right outputs.
template <typename T, int PANELS, int MANY, typename W>
inline void multiply(int64_t depth, const T* x, const W* panel,
                     Vec<T> (&sums)[PANELS][MANY][2]) {
  for (int64_t k = 0; k < depth; ++k, panel += 2 * WIDE<T>) {
    announce<MANY>(panel, depth * 2 * WIDE<T> * sizeof(W));
    for (int p = 0; p < PANELS; ++p) {
      const W* weights = panel + p * depth * 2 * WIDE<T>;
      const Vec<T> left = load<T>(weights), right = load<T>(weights + WIDE<T>);
      for (int token = 0; token < MANY; ++token) {
        const Vec<T> number = spread<T>(x[token * depth + k]);
        sums[p][token][0] = multiply_add(left, number, sums[p][token][0]);
        sums[p][token][1] = multiply_add(right, number, sums[p][token][1]);
      }
    }
  }
}

#ifdef PAIRS
template <typename T, int PANELS, int MANY>
inline void multiply(int64_t depth, const bfloat16* x, const bfloat16* panel,
                     Vec<T> (&sums)[PANELS][MANY][2]) {
  for (int64_t k = 0; k < depth; k += 2, panel += 4 * WIDE<T>) {
    announce<MANY>(panel, depth * BYTES);
    for (int p = 0; p < PANELS; ++p) {
      const bfloat16* weights = panel + p * depth * 2 * WIDE<T>;
      const __m512i left = _mm512_loadu_si512(weights);
      const __m512i right = _mm512_loadu_si512(weights + 2 * WIDE<T>);
      for (int token = 0; token < MANY; ++token) {
        int pair;
        std::memcpy(&pair, x + token * depth + k, sizeof pair);
        Vec<T>(&to)[2] = sums[p][token];
        const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
        to[0] = (Vec<T>)_mm512_dpbf16_ps((__m512)to[0], (__m512bh)left, both);
        to[1] = (Vec<T>)_mm512_dpbf16_ps((__m512)to[1], (__m512bh)right, both);
      }
    }
  }
}
#endif

// Tokens as they are multiplied: as they are, or in fp32, in the memory of this thread.
template <typename S>
inline const S* readable(const S* x, int64_t) {
  return x;
}

#ifndef PAIRS
inline const float* readable(const bfloat16* x, int64_t count) {
  static thread_local std::vector<float> wide;
  wide.resize((count + WIDE<float> - 1) / WIDE<float> * WIDE<float>);
  int64_t i = 0;
  for (; i + WIDE<float> <= count; i += WIDE<float>) store<float>(&wide[i], load<float>(x + i));
  for (; i < count; ++i) {
    const uint32_t bits = uint32_t(x[i].bits) << 16;
    std::memcpy(&wide[i], &bits, sizeof bits);
  }
  return wide.data();
}
#endif

// Sums of `count` tokens, at most MANY, with neighbouring panels.
template <typename T, int PANELS, int MANY, typename X, typename W, typename Put>
inline void tile(int64_t count, int64_t depth, const X* x, const W* panel, int64_t first,
                 int64_t place, const Put& put) {
  if constexpr (MANY > 1)
    if (count < MANY) return tile<T, PANELS, MANY - 1>(count, depth, x, panel, first, place, put);
  Vec<T> sums[PANELS][MANY][2] = {};
  multiply<T>(depth, x + first * depth, panel, sums);
  for (int p = 0; p < PANELS; ++p, place += WIDE<T>)
    for (int token = 0; token < MANY; ++token) put(first + token, place, sums[p][token]);
}

// Call put(token, place, sums) for all tokens x (tokens, depth), where sums are outputs place ...
// and half + place ...; shared by the threads of the team that runs it, which meet at the end.
template <typename T, typename S, typename W, typename Put>
void product(int64_t tokens, int64_t depth, int64_t outputs, const S* own, const W* panels,
             const Put& put) {
  const auto* x = readable(own, tokens * depth);
  const int64_t panel_count = half_of<T>(outputs) / WIDE<T>, size = 2 * WIDE<T> * depth;
  if (tokens == 0) return;
  if (tokens <= FEW) {
#pragma omp for schedule(static)
    for (int64_t panel = 0; panel < panel_count; panel += TOGETHER) {
      const W* from = panels + panel * size;
      const int64_t place = panel * WIDE<T>;
      if (panel + TOGETHER <= panel_count)
        tile<T, TOGETHER, FEW>(tokens, depth, x, from, 0, place, put);
      else
        for (int64_t p = 0; panel + p < panel_count; ++p)
          tile<T, 1, FEW>(tokens, depth, x, from + p * size, 0, place + p * WIDE<T>, put);
    }
    return;
  }
  const int64_t parts = (tokens + MOST_TOKENS - 1) / MOST_TOKENS;
  const int64_t each = (tokens + parts - 1) / parts;
#pragma omp for schedule(static)
  for (int64_t task = 0; task < panel_count * parts; ++task) {
    const int64_t panel = task / parts, first = task % parts * each;
    const int64_t count = first + each < tokens ? each : tokens - first;
    if (count > 0)
      tile<T, 1, MOST_TOKENS>(count, depth, x, panels + panel * size, first, panel * WIDE<T>, put);
  }
}

// out = x weight^T + bias, for x (tokens, depth); bias may be null.
template <typename S, typename T, typename W>
void linear(int64_t tokens, int64_t depth, int64_t outputs, const S* x, const W* panels,
            const S* bias, S* out) {
  const int64_t half = half_of<T>(outputs);
  const auto put = [=](int64_t token, int64_t place, const Vec<T>(&sums)[2]) {
    for (int64_t side = 0; side < 2; ++side, place += half) {
      const int64_t left = outputs - place;
      if (left <= 0) return;
      S found[WIDE<T>], added[WIDE<T>] = {};
      const int64_t count = left < WIDE<T> ? left : WIDE<T>;
      if (bias != nullptr) std::memcpy(added, bias + place, count * sizeof(S));
      store<T>(found, sums[side] + load<T>(added));
      std::memcpy(out + token * outputs + place, found, count * sizeof(S));
    }
  };
#pragma omp parallel
  product<T>(tokens, depth, outputs, x, panels, put);
}

}  // namespace
