// What stays between rounds: slots of the KV cache, stale predictions.

#pragma once

#include "rounds.h"

namespace {

// `KVCache.move`: of every row the slots begin + path (images, n) become the first from `begin` on.
// memory: (layers, rows, heads, slots, size) with strides; first: (images) where these begin.
template <typename T>
void move(int64_t images, int64_t guidance, int64_t n, const int64_t* path, const int64_t* first,
          int64_t layers, int64_t heads, int64_t size, int64_t layer_stride, int64_t row_stride,
          int64_t head_stride, T* memory) {
  std::vector<T> kept(n * size);  // first all are read: a path over row ends goes back and forth
  for (int64_t row = 0; row < images * guidance; ++row) {
    const int64_t image = row / guidance, *own = path + image * n;
    int64_t still = 0;  // slots that stay where they are
    while (still < n && own[still] == still) ++still;
    for (int64_t layer = 0; layer < layers; ++layer)
      for (int64_t head = 0; head < heads; ++head) {
        T* begin = memory + layer * layer_stride + row * row_stride + head * head_stride +
                   first[image] * size;
        for (int64_t i = still; i < n; ++i)
          std::copy_n(begin + own[i] * size, size, &kept[i * size]);
        std::copy(kept.begin() + still * size, kept.end(), begin + still * size);
      }
  }
}

// `KVCache.open`: positions (rows, n) and the mask (rows, n, stop) of a pass over n tokens, which
// see `block` (images, n, m; strides) of the m latest; the first of these stands at first[image].
// depths: (images, n; strides). pads: (rows, stop; stride). alone: padding sees itself.
template <typename T>
void open(int64_t images, int64_t guidance, int64_t n, int64_t m, int64_t stop,
          const int64_t* first, const int64_t* origins, int64_t last, const int64_t* depths,
          int64_t depth_image, int64_t depth_token, const bool* block, int64_t block_image,
          int64_t block_token, int64_t block_slot, const T* pads, int64_t pad_row, int64_t alone,
          int64_t* positions, T* mask) {
  for (int64_t row = 0; row < images * guidance; ++row) {
    const int64_t image = row / guidance, begin = first[image];
    for (int64_t token = 0; token < n; ++token) {
      const int64_t depth = depths[image * depth_image + token * depth_token];
      const int64_t position = begin + depth - origins[row];
      positions[row * n + token] = std::min(std::max<int64_t>(position, 0), last);
      if (mask == nullptr) continue;
      T* to = mask + (row * n + token) * stop;
      std::copy_n(pads + row * pad_row, stop, to);
      const bool* sees = block + image * block_image + token * block_token;
      for (int64_t slot = begin; slot < stop; ++slot)
        if (slot - begin >= m || !sees[(slot - begin) * block_slot]) to[slot] = NONE<T>;
      if (alone) to[token] = 0;
    }
  }
}

// `JacobiDrafter.look_ahead`: predictions (images, reach, vocab) of the next positions, of a table
// (images, rows + 2, vocab). columns: of the image if an unknown one stands for that above, 0 for
// the last one that is known, -1 for the uniform distribution.
template <typename T>
void ahead(int64_t images, int64_t reach, int64_t vocab, int64_t rows, int64_t columns,
           const int64_t* root, const int64_t* reached, const T* table, T* out) {
  for (int64_t image = 0; image < images; ++image)
    for (int64_t step = 1; step <= reach; ++step, out += vocab) {
      const int64_t position = root[image] + step, known = reached[image];
      int64_t source = position;
      if (position > known) {
        const int64_t up = columns > 0 ? (position - known + columns - 1) / columns : 0;
        source = columns < 0 ? 0 : known;
        if (columns > 0 && position - up * columns > 0) source = position - up * columns;
      }
      const int64_t row = source > 0 ? (source - 1) % rows : rows + 1;
      std::copy_n(table + (image * (rows + 2) + row) * vocab, vocab, out);
    }
}

// `JacobiDrafter.observe`: takes log_p (images, nodes, vocab) over into the table, along the branch
// that shares most with the accepted path, and moves root and reached on.
template <typename T>
void remember(int64_t images, int64_t nodes, int64_t vocab, int64_t rows, const int64_t* parents,
              const int64_t* depths, const T* scores, const int64_t* path, const int64_t* accepted,
              const T* log_p, T* table, int64_t* root, int64_t* reached) {
  std::vector<int64_t> shared(nodes);  // accepted nodes among a node and its ancestors
  for (int64_t image = 0; image < images; ++image) {
    const int64_t at = image * nodes;
    std::fill(shared.begin(), shared.end(), 0);
    for (int64_t i = 0; i <= accepted[image]; ++i) shared[path[at + i]] = 1;
    int64_t last = 0;
    for (int64_t i = 1; i < nodes; ++i) {
      shared[i] += shared[parents[at + i]];
      const bool better = shared[i] > shared[last] ||
                          (shared[i] == shared[last] && depths[at + i] > depths[at + last]);
      if (better && scores[at + i] > NONE<T>) last = i;
    }
    for (int64_t i = last;; i = parents[at + i]) {
      const int64_t row = (root[image] + depths[at + i]) % rows;
      std::copy_n(log_p + (at + i) * vocab, vocab, table + (image * (rows + 2) + row) * vocab);
      if (i == 0) break;
    }
    reached[image] = std::max(reached[image], root[image] + depths[at + last] + 1);
    root[image] += accepted[image] + 1;
  }
}

}  // namespace
