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
#endif

namespace {

// Tokens of a tile. Their sums, two vectors of each panel, stay in registers beside two vectors of
// weights and a number of a token.
constexpr int MOST_TOKENS = 6;

// Panels of a group. A sum waits for its last term, so there have to be others meanwhile: a tile of
// a few tokens always has a group's panels, a tile of many where the registers hold their sums.
constexpr int TOGETHER = 2, FEW = 2;
static_assert(TOGETHER == 2, "a smaller last group has one panel");

// A weight (outputs, depth) lies in panels: outputs p WIDE ... and half + p WIDE ..., so that gate
// and up of an MLP meet; missing outputs are 0. The panels of a group stand side by side, since
// memory is read fastest in one stream: (groups, depth, TOGETHER, 2, WIDE), the last group perhaps
// with fewer. Where pairs are multiplied, neighbours in depth stand together: (groups, depth / 2,
// TOGETHER, 2, WIDE, 2).
template <typename T>
inline int64_t half_of(int64_t outputs) {
  return ((outputs + 1) / 2 + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
}

// How many panels stand beside a group's first one, itself included.
inline int64_t width_of(int64_t first, int64_t panel_count) {
  return panel_count - first < TOGETHER ? panel_count - first : TOGETHER;
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
  const int64_t half = half_of<T>(outputs), panel_count = half / WIDE<T>;
#pragma omp parallel for
  for (int64_t group = 0; group < panel_count; group += TOGETHER) {
    W* to = panels + group * depth * 2 * WIDE<T>;
    for (int64_t k = 0; k < depth; k += PAIRED<S>)
      for (int64_t panel = group; panel < group + width_of(group, panel_count); ++panel)
        for (int64_t side = 0; side < 2; ++side)
          for (int64_t i = 0; i < WIDE<T>; ++i)
            for (int64_t of = 0; of < PAIRED<S>; ++of) {
              const int64_t output = side * half + panel * WIDE<T> + i;
              *to++ = output < outputs ? weight[output * depth + k + of] : W{};
            }
  }
}

// Ask for what stands so many bytes further on. With few tokens the processor does so by itself.
template <int MANY>
inline void announce(const void* at, int64_t bytes, int64_t count) {
  if (MANY <= 4) return;
  for (int64_t line = 0; line < count; line += 64)
    __builtin_prefetch((const char*)at + bytes + line, 0, 2);
}

// Sums of some tokens x with neighbouring panels of a group so wide; left and right outputs.
template <typename T, int PANELS, int MANY, typename W>
inline void multiply(int64_t depth, int64_t width, const T* x, const W* panel,
                     Vec<T> (&sums)[PANELS][MANY][2]) {
  const int64_t step = width * 2 * WIDE<T>;
  for (int64_t k = 0; k < depth; ++k, panel += step) {
    announce<MANY>(panel, depth * step * sizeof(W), PANELS * 2 * WIDE<T> * sizeof(W));
    for (int p = 0; p < PANELS; ++p) {
      const W* weights = panel + p * 2 * WIDE<T>;
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
inline void multiply(int64_t depth, int64_t width, const bfloat16* x, const bfloat16* panel,
                     Vec<T> (&sums)[PANELS][MANY][2]) {
  const int64_t step = width * 4 * WIDE<T>;
  for (int64_t k = 0; k < depth; k += 2, panel += step) {
    announce<MANY>(panel, depth * step, PANELS * 2 * BYTES);
    for (int p = 0; p < PANELS; ++p) {
      const bfloat16* weights = panel + p * 4 * WIDE<T>;
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

// Sums of `count` tokens, at most MANY, with neighbouring panels of a group so wide.
template <typename T, int PANELS, int MANY, typename X, typename W, typename Put>
inline void tile(int64_t count, int64_t depth, int64_t width, const X* x, const W* panel,
                 int64_t first, int64_t place, const Put& put) {
  if constexpr (MANY > 1)
    if (count < MANY)
      return tile<T, PANELS, MANY - 1>(count, depth, width, x, panel, first, place, put);
  Vec<T> sums[PANELS][MANY][2] = {};
  multiply<T>(depth, width, x + first * depth, panel, sums);
  for (int p = 0; p < PANELS; ++p, place += WIDE<T>)
    for (int token = 0; token < MANY; ++token) put(first + token, place, sums[p][token]);
}

// Tiles of so many panels of a group, or of a last group's only one, and of at most MANY tokens.
template <typename T, int PANELS, int MANY, typename S, typename X, typename W, typename Put>
void tiles(int64_t tokens, int64_t depth, int64_t panel_count, const X* x, const W* panels,
           const Put& put) {
  const int64_t parts = (tokens + MANY - 1) / MANY, each = (tokens + parts - 1) / parts;
  const int64_t size = 2 * WIDE<T> * depth, spans = (panel_count + PANELS - 1) / PANELS;
#pragma omp for schedule(static)
  for (int64_t task = 0; task < spans * parts; ++task) {
    const int64_t panel = task / parts * PANELS, first = task % parts * each;
    const int64_t count = first + each < tokens ? each : tokens - first;
    if (count <= 0) continue;
    const int64_t group = panel / TOGETHER * TOGETHER, width = width_of(group, panel_count);
    const W* from = panels + group * size + (panel - group) * 2 * WIDE<T> * PAIRED<S>;
    if (width < PANELS)
      tile<T, 1, MANY>(count, depth, width, x, from, first, panel * WIDE<T>, put);
    else
      tile<T, PANELS, MANY>(count, depth, width, x, from, first, panel * WIDE<T>, put);
  }
}

// Call put(token, place, sums) for all tokens x (tokens, depth), where sums are outputs place ...
// and half + place ...; shared by the threads of the team that runs it, which meet at the end.
template <typename T, typename S, typename W, typename Put>
void product(int64_t tokens, int64_t depth, int64_t outputs, const S* own, const W* panels,
             const Put& put) {
  if (tokens == 0) return;
  const auto* x = readable(own, tokens * depth);
  const int64_t panel_count = half_of<T>(outputs) / WIDE<T>;
  if (tokens <= FEW)
    tiles<T, TOGETHER, FEW, S>(tokens, depth, panel_count, x, panels, put);
  else
    tiles<T, REGISTERS == 32 ? TOGETHER : 1, MOST_TOKENS, S>(tokens, depth, panel_count, x, panels,
                                                             put);
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
