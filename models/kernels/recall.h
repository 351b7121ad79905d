// Stale predictions by similarity of tokens, and mixtures with a drafter's.

#pragma once

#include "rounds.h"

namespace {

// Sum of the products of a and b (count).
template <typename T>
inline T dot(const T* a, const T* b, int64_t count) {
  Vec<T> even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * WIDE<T> <= count; i += 2 * WIDE<T>) {
    even += load<T>(a + i) * load<T>(b + i);
    odd += load<T>(a + i + WIDE<T>) * load<T>(b + i + WIDE<T>);
  }
  T found = sum<T>(even + odd);
  for (; i < count; ++i) found += a[i] * b[i];
  return found;
}

// `observed` in likeness.py: the last tokens (images, nodes, reach) of the nodes of a verified
// tree, their positions (images, nodes), and the tokens decided after it, recent (images, reach).
template <typename T>
void lineage(int64_t images, int64_t nodes, int64_t reach, const int64_t* tokens,
             const int64_t* parents, const int64_t* depths, const T* scores, const int64_t* path,
             const int64_t* emitted, const int64_t* accepted, const int64_t* root, int64_t* recent,
             int64_t* places, int64_t* found) {
  for (int64_t image = 0; image < images; ++image) {
    const int64_t at = image * nodes;
    int64_t *line = found + at * reach, *own = recent + image * reach;
    for (int64_t i = 0; i < nodes; ++i) {  // a node has its token, then its parent's last ones
      const int64_t* before = i == 0 ? own : line + parents[at + i] * reach - 1;
      line[i * reach] = i == 0 ? own[0] : tokens[at + i];
      std::copy_n(before + 1, reach - 1, line + i * reach + 1);
      places[at + i] = scores[at + i] > NONE<T> ? root[image] + depths[at + i] : -1;
    }
    const int64_t last = accepted[image];
    std::copy_n(line + path[at + last] * reach, reach - 1, own + 1);
    own[0] = emitted[at + last];
  }
}

// What `recall` reads and finds; see `Recall` in recall_kernels.py.
struct Recall {
  int64_t images, k, vocab, hidden, reach, nodes, known, level, levels;
  double share, least, slope, trust_least, trust_slope, floor;
  const double* sharpness;
  const int64_t *tokens, *parents, *chosen, *recent, *root, *reached, *places, *lineage;
  const void *directions, *log_p, *ahead;
  void *log_q, *shares, *trust;
};

// `SimilarDrafter.recall`: predictions (images, k, vocab) after the chosen nodes of the newest
// level, from those of the last tree's nodes at their position, weighed by similarity.
template <typename T>
void recall(const Recall& s) {
  each_row<T>(s.images * s.k, s.known, [&s](int64_t row, T* weights) {
    const int64_t image = row / s.k, at = image * s.nodes, position = s.root[image] + s.level;
    const T *directions = (const T*)s.directions, *log_p = (const T*)s.log_p;
    const int64_t *places = s.places + image * s.known, *recent = s.recent + image * s.reach;
    T most = NONE<T>, total = 0, sharpness = 0;
    for (int64_t token = 0; token < s.reach; ++token) sharpness += T(s.sharpness[token]);
    std::vector<int64_t> near, own(s.reach);
    for (int64_t i = 0; i < s.known; ++i)
      if (places[i] == position) near.push_back(i);
    int64_t node = s.chosen[row], decided = 0;  // tokens before the root that were passed
    for (int64_t& token : own) {
      token = decided > 0 ? recent[decided] : s.tokens[at + node];
      decided += node == 0;
      node = s.parents[at + node];
    }
    for (const int64_t i : near) {
      const int64_t* others = s.lineage + (image * s.known + i) * s.reach;
      weights[i] = 0;
      for (int64_t token = 0; token < s.reach; ++token)
        weights[i] += T(s.sharpness[token]) * dot<T>(directions + own[token] * s.hidden,
                                                     directions + others[token] * s.hidden,
                                                     s.hidden);
      most = std::max(most, weights[i]);
    }
    T* out = (T*)s.log_q + row * s.vocab;
    if (near.empty()) {
      const T* alone = (const T*)s.ahead + (image * s.levels + s.level) * s.vocab;
      for (int64_t i = 0; i < s.vocab; ++i) out[i] = std::max(alone[i], T(s.floor));
    } else {
      std::fill(out, out + s.vocab, T(0));
      for (const int64_t i : near) total += weights[i] = std::exp(weights[i] - most);
      for (const int64_t i : near) {
        const T weight = weights[i] / total;
        const T* known = log_p + (image * s.known + i) * s.vocab;
        for (int64_t j = 0; j < s.vocab; ++j) out[j] += weight * std::max(known[j], T(s.floor));
      }
    }
    normalise(out, s.vocab);
    const auto clamped = [](T x) { return std::min(std::max(x, T(0)), T(1)); };
    const T likeness = near.empty() ? T(0) : most / sharpness, cut = clamped(likeness);
    const T alone = position + 1 <= s.reached[image] ? T(s.share) : T(0);
    ((T*)s.shares)[row] = near.empty() ? alone : clamped(T(s.least) + T(s.slope) * likeness);
    ((T*)s.trust)[row] = std::exp(T(s.trust_least) + T(s.trust_slope) * cut * cut * cut);
  });
}

// `GraftDrafter.expand`: own (images, k, vocab) and others, mixed geometrically by shares of these,
// normalised. Strides are of images and nodes. cut: codes that one of them cuts have the own value.
template <typename T>
void mix(int64_t images, int64_t k, int64_t vocab, const T* own, int64_t own_image,
         int64_t own_node, const T* other, int64_t other_image, int64_t other_node, const T* shares,
         int64_t share_image, int64_t share_node, int64_t cut, T* mixed) {
  each_row<T>(images * k, 0, [=](int64_t row, T*) {
    const int64_t image = row / k, node = row % k;
    const T* a = own + image * own_image + node * own_node;
    const T* b = other + image * other_image + node * other_node;
    const T share = shares[image * share_image + node * share_node];
    T* out = mixed + row * vocab;
    for (int64_t i = 0; i < vocab; ++i) out[i] = a[i] + share * (b[i] - a[i]);
    for (int64_t i = 0; cut && i < vocab; ++i)
      if (!std::isfinite(out[i]) || !std::isfinite(b[i])) out[i] = a[i];
    normalise(out, vocab);
  });
}

}  // namespace
