// Distributions, the target's choices, children. T is the type of probabilities.
//
// Here, in trees.h, slots.h and recall.h every function does what the method that it names, or the
// class, does by torch: the small steps of a round, between forward passes.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t FEW = 8;  // rows of probabilities that one thread computes alone

template <typename T>
constexpr T NONE = -std::numeric_limits<T>::infinity();

// Call step(row, memory) for rows, with numbers (room, a whole number of vectors) of its own.
template <typename T, typename Step>
void each_row(int64_t rows, int64_t room, const Step& step) {
#pragma omp parallel if (rows > FEW)
  {
    static thread_local std::vector<T> memory;
    memory.resize((room + WIDE<T> - 1) / WIDE<T> * WIDE<T>);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) step(row, memory.data());
  }
}

// The greatest of x (count); NaN if one of them is.
template <typename T>
inline T greatest(const T* x, int64_t count) {
  T most = NONE<T>;
  bool broken = false;
  int64_t i = 0;
  if (count >= WIDE<T>) {
    Vec<T> found = load<T>(x);
    auto equal = found == found;
    for (i = WIDE<T>; i + WIDE<T> <= count; i += WIDE<T>) {
      const Vec<T> next = load<T>(x + i);
      equal &= next == next;
      found = next > found ? next : found;
    }
    for (int lane = 0; lane < WIDE<T>; ++lane) {
      broken |= equal[lane] == 0;
      most = found[lane] > most ? found[lane] : most;
    }
  }
  for (; i < count; ++i) {
    broken |= x[i] != x[i];
    most = x[i] > most ? x[i] : most;
  }
  return broken ? std::numeric_limits<T>::quiet_NaN() : most;
}

// x (count) becomes its log-softmax; NaN throughout if it has none.
template <typename T>
inline void normalise(T* x, int64_t count) {
  const T most = greatest(x, count);
  if (!std::isfinite(most)) {
    std::fill(x, x + count, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  Vec<T> total{};
  int64_t i = 0;
  for (; i + WIDE<T> <= count; i += WIDE<T>) total += exponential<T>(load<T>(x + i) - most);
  T rest[WIDE<T>];
  for (int lane = 0; lane < WIDE<T>; ++lane)
    rest[lane] = i + lane < count ? x[i + lane] - most : NONE<T>;
  total += exponential<T>(load<T>(rest));
  const T log = std::log(sum<T>(total));
  for (i = 0; i < count; ++i) x[i] = (x[i] - most) - log;
}

// `SamplingDistribution`, without cuts: logits (images, guidance, n, vocab) -> (images, n, vocab).
template <typename S, typename T>
void log_p(int64_t images, int64_t n, int64_t vocab, int64_t guidance, double cfg,
           double temperature, const S* logits, T* out) {
  const auto step = [=](int64_t row, T* scores) {
    const int64_t image = row / n, token = row % n;
    const S* conditional = logits + (image * guidance * n + token) * vocab;
    const auto read = [&](const S* from, int64_t i) {
      if constexpr (sizeof(S) == sizeof(T)) {
        return from[i];
      } else {
        const uint32_t bits = uint32_t(from[i].bits) << 16;
        T found;
        std::memcpy(&found, &bits, sizeof found);
        return found;
      }
    };
    for (int64_t i = 0; i < vocab; ++i) {
      T score = read(conditional, i);
      if (guidance == 2) {
        const T plain = read(conditional + n * vocab, i);
        score = plain + T(cfg) * (score - plain);
      }
      scores[i] = temperature == 1 ? score : score / T(temperature);
    }
    normalise(scores, vocab);
    std::copy(scores, scores + vocab, out + row * vocab);
  };
  each_row<T>(images * n, vocab, step);
}

// The place of the greatest of a + b (count), the first of several; b may be null.
template <typename T>
inline int64_t first_greatest(const T* a, const T* b, int64_t count, T* memory) {
  for (int64_t i = 0; i < count; ++i) memory[i] = b == nullptr ? a[i] : a[i] + b[i];
  const T most = greatest(memory, count);
  int64_t i = 0;
  while (i < count - 1 && memory[i] != most) ++i;
  return i;
}

// Positional noise: a table (images, rows, vocab), and the position after every image's root. Null
// at temperature 0.
template <typename T>
struct Noise {
  const T* table;
  int64_t rows, positions;
  const int64_t* decided;
  int64_t stride;

  const T* after(int64_t image, int64_t depth, int64_t vocab) const {
    if (table == nullptr) return nullptr;
    const int64_t position = std::min(decided[image * stride] + depth, positions - 1);
    return table + (image * rows + position % rows) * vocab;
  }
};

// `Exact`: trees (images, nodes), the root among the nodes. log_p: (images, nodes, vocab). figures:
// (images, 7 + 2 nodes), as `Verdict` has them, but for the levels grown.
template <typename T>
void judge(int64_t images, int64_t nodes, int64_t vocab, const T* log_p, const Noise<T>& noise,
           const int64_t* tokens, const int64_t* parents, const int64_t* depths, const T* scores,
           int64_t* choices, int64_t* path, int64_t* emitted, int64_t* accepted,
           double* figures) {
  std::vector<T> likeliest(images * nodes);
  T* top = likeliest.data();
  each_row<T>(images * nodes, vocab, [=](int64_t row, T* memory) {
    const T *own = log_p + row * vocab, *drawn = noise.after(row / nodes, depths[row], vocab);
    choices[row] = first_greatest(own, drawn, vocab, memory);
    top[row] = greatest(own, vocab);
  });
  std::vector<char> reached(nodes);
  for (int64_t image = 0; image < images; ++image) {
    const int64_t at = image * nodes;
    int64_t last = 0;
    reached[0] = 1;
    for (int64_t i = 1; i < nodes; ++i) {
      const int64_t parent = parents[at + i];
      reached[i] = scores[at + i] > NONE<T> && reached[parent] &&
                   tokens[at + i] == choices[at + parent];
      if (reached[i] && depths[at + i] > depths[at + last]) last = i;
    }
    accepted[image] = depths[at + last];
    std::fill(reached.begin(), reached.end(), 0);  // from now on: whether a node is on the path
    for (int64_t i = last; i > 0; i = parents[at + i]) reached[i] = 1;
    reached[0] = 1;
    int64_t place = 0;
    for (const char wanted : {1, 0})
      for (int64_t i = 0; i < nodes; ++i)
        if (reached[i] == wanted) path[at + place++] = i;
    double levels = 0, deepest = 0, expected = -1, broken = 0;
    int64_t present = -1;  // without the root
    for (int64_t i = 0; i < nodes; ++i) {
      const double depth = depths[at + i], score = scores[at + i];
      if (score != score) broken = 1;
      else if (top[at + i] != top[at + i] && broken == 0) broken = 2;
      if (!(score > NONE<T>)) continue;
      expected += std::exp(score);
      if (depth > levels || (depth == levels && (present < 0 || score > deepest))) {
        levels = depth;
        deepest = score;
      }
      ++present;
    }
    const double confidence = std::exp(deepest / std::max(levels, 1.0));
    for (const double each : {double(accepted[image]), broken, 0.0, levels, double(present),
                              confidence, expected})
      *figures++ = each;
    for (int64_t i = 0; i < nodes; ++i, ++figures) {
      emitted[at + i] = choices[at + path[at + i]];
      figures[0] = emitted[at + i];
      figures[nodes] = std::exp(double(top[at + path[at + i]]));
    }
    figures += nodes;
  }
}

// `Coupled` and `TopK`: the best `count` of (log_q + noise) * factor * trust, log-softmax of it
// unless it is one. Strides are of images and nodes. noise: null for none. trust: (images, k) or
// null.
template <typename T>
void children(int64_t images, int64_t k, int64_t vocab, int64_t count, const T* log_q,
              int64_t q_image, int64_t q_node, const T* noise, int64_t noise_image,
              int64_t noise_node, double factor, const T* trust, int64_t normal, int64_t* tokens,
              T* scores) {
  each_row<T>(images * k, vocab, [=](int64_t row, T* values) {
    const int64_t image = row / k, node = row % k;
    const T* q = log_q + image * q_image + node * q_node;
    const T* drawn = noise == nullptr ? noise : noise + image * noise_image + node * noise_node;
    const T power = trust == nullptr ? T(factor) : T(factor) * trust[row];
    for (int64_t i = 0; i < vocab; ++i)
      values[i] = (noise == nullptr ? q[i] : q[i] + drawn[i]) * power;
    if (!normal) normalise(values, vocab);
    else if (const T most = greatest(values, vocab); most != most)
      std::fill(values, values + vocab, most);  // no distribution: that must be seen
    int64_t* token = tokens + row * count;
    T* score = scores + row * count;
    for (int64_t i = 0, found = 0; i < vocab; ++i) {
      if (found == count && !(values[i] > score[count - 1])) continue;
      found = found < count ? found + 1 : found;
      int64_t place = found - 1;
      for (; place > 0 && values[i] > score[place - 1]; --place) {
        score[place] = score[place - 1];
        token[place] = token[place - 1];
      }
      score[place] = values[i];
      token[place] = i;
    }
  });
}

}  // namespace
