// The small steps of a round: what lies between forward passes. T is the type of probabilities.
//
// Every step does what the method of the same meaning in decoding/ and drafters/ does by torch.

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

// `Exact`: trees (images, nodes), the root among the nodes. log_p: (images, nodes, vocab). measured:
// (images, 3 + 5 nodes), as `measured` in figures.py has it, but for the levels grown.
template <typename T>
void judge(int64_t images, int64_t nodes, int64_t vocab, const T* log_p, const Noise<T>& noise,
           const int64_t* tokens, const int64_t* parents, const int64_t* depths, const T* scores,
           int64_t* choices, int64_t* path, int64_t* emitted, int64_t* accepted,
           double* measured) {
  const int64_t width = 3 + 5 * nodes;
  each_row<T>(images * nodes, vocab, [=](int64_t row, T* memory) {
    const T *own = log_p + row * vocab, *drawn = noise.after(row / nodes, depths[row], vocab);
    choices[row] = first_greatest(own, drawn, vocab, memory);
    measured[row / nodes * width + 3 + 4 * nodes + row % nodes] = greatest(own, vocab);
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
    double* figures = measured + image * width;
    *figures++ = accepted[image];
    *figures++ = 0;
    *figures++ = 0;
    for (int64_t i = 0; i < nodes; ++i) {
      emitted[at + i] = choices[at + path[at + i]];
      figures[i] = path[at + i];
      figures[nodes + i] = emitted[at + i];
      figures[2 * nodes + i] = scores[at + i];
      figures[3 * nodes + i] = depths[at + i];
    }
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

// `DraftTree.visible`: (images, nodes, nodes).
inline void visible(int64_t images, int64_t nodes, const int64_t* parents, bool* seen) {
  for (int64_t row = 0; row < images * nodes; ++row) {
    const int64_t node = row % nodes;
    bool* to = seen + row * nodes;
    if (node == 0) std::fill(to, to + nodes, false);
    else std::copy_n(seen + (row - node + parents[row]) * nodes, nodes, to);
    to[node] = true;
  }
}

template <typename T>
struct Trees {  // (images, nodes), the root among the nodes
  int64_t nodes;
  int64_t *tokens, *parents, *depths;
  T* scores;
};

// `DraftTree.extend`, by tokens and hits (images, k, c) of the children of nodes (images, k), and
// `TreePlan.restrict` to limits (images), or null for none.
template <typename T>
void extend(int64_t images, const Trees<T>& old, int64_t height, int64_t k, int64_t c,
            const int64_t* nodes, const int64_t* tokens, const T* hits, int64_t width,
            const int64_t* depths, const int64_t* widths, const Trees<T>& grown) {
  for (int64_t image = 0; image < images; ++image) {
    const int64_t from = image * old.nodes, to = image * grown.nodes;
    std::copy_n(old.tokens + from, old.nodes, grown.tokens + to);
    std::copy_n(old.parents + from, old.nodes, grown.parents + to);
    std::copy_n(old.depths + from, old.nodes, grown.depths + to);
    std::copy_n(old.scores + from, old.nodes, grown.scores + to);
    const bool deep = depths == nullptr || depths[image] > height;
    int64_t most = std::max(k, c);
    if (widths != nullptr && widths[image] < width) most = widths[image];
    for (int64_t i = 0; i < k * c; ++i) {
      const int64_t node = nodes[image * k + i / c], place = to + old.nodes + i;
      const bool wanted = deep && i / c < most && i % c < most;
      grown.tokens[place] = tokens[image * k * c + i];
      grown.parents[place] = node;
      grown.depths[place] = height + 1;
      grown.scores[place] = wanted ? old.scores[from + node] + hits[image * k * c + i] : NONE<T>;
    }
  }
}

// `DynamicTree.select`: the best k of the newest nodes of trees (images, nodes), by their scores.
template <typename T>
void best(int64_t images, int64_t nodes, int64_t newest, int64_t k, const T* scores,
          int64_t* chosen) {
  std::vector<int64_t> order(newest);
  for (int64_t image = 0; image < images; ++image) {
    const T* own = scores + image * nodes;
    for (int64_t i = 0; i < newest; ++i) order[i] = nodes - newest + i;
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [own](int64_t a, int64_t b) {
      return own[a] > own[b] || (own[a] == own[b] && a < b);
    });
    std::copy_n(order.begin(), k, chosen + image * k);
  }
}

// `DynamicTree.ended`: whether nodes as good as the newest level's best fill the budget.
template <typename T>
void ended(int64_t images, int64_t nodes, int64_t newest, const T* scores, const int64_t* limits,
           bool* found) {
  for (int64_t image = 0; image < images; ++image) {
    const T* own = scores + image * nodes;
    const T most = greatest(own + nodes - newest, newest);
    int64_t good = 0;
    for (int64_t i = 1; i < nodes; ++i) good += own[i] >= most;
    found[image] = good >= limits[image] || most == NONE<T>;
  }
}

// `Level.before`: of the level of nodes (images, level) with outputs (images, guidance, level,
// hidden) and seen (images, level, slots), the parts of the parents of nodes (images, k) of a tree
// (images, nodes). Each sees itself besides, in a slot of its own.
template <typename T>
void before(int64_t images, int64_t guidance, int64_t hidden, int64_t slots, int64_t nodes,
            int64_t level, int64_t k, const int64_t* parents, const int64_t* chosen,
            const int64_t* known, const T* outputs, const bool* seen, T* features, bool* sees) {
  for (int64_t image = 0; image < images; ++image)
    for (int64_t i = 0; i < k; ++i) {
      const int64_t parent = parents[image * nodes + chosen[image * k + i]];
      const int64_t* own = known + image * level;
      const int64_t place = std::min(std::find(own, own + level, parent) - own, level - 1);
      for (int64_t row = image * guidance; row < (image + 1) * guidance; ++row)
        std::copy_n(outputs + (row * level + place) * hidden, hidden,
                    features + (row * k + i) * hidden);
      bool* to = sees + (image * k + i) * (slots + k);
      std::copy_n(seen + (image * level + place) * slots, slots, to);
      std::fill(to + slots, to + slots + k, false);
      to[slots + i] = true;
    }
}

// `DynamicTree.prune`: the best nodes by worth (images, nodes), the first of equal ones; of them up
// to limits (images), or null for all.
template <typename T>
void prune(int64_t images, const Trees<T>& old, const T* worth, const int64_t* limits,
           const Trees<T>& kept) {
  const int64_t count = kept.nodes - 1;
  std::vector<int64_t> order(old.nodes - 1), place(old.nodes);
  std::vector<T> own(old.nodes);
  const auto better = [&own](int64_t a, int64_t b) {
    return own[a] > own[b] || (own[a] == own[b] && a < b);
  };
  for (int64_t image = 0; image < images; ++image) {
    const int64_t from = image * old.nodes, to = image * kept.nodes;
    for (int64_t i = 0; i < old.nodes; ++i)  // NaN is kept, so that it is found
      own[i] = worth[from + i] == worth[from + i] ? worth[from + i] : -NONE<T>;
    for (int64_t i = 0; i < old.nodes - 1; ++i) order[i] = i + 1;
    std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
    const int64_t most = limits == nullptr ? count : std::min(limits[image], count);
    std::fill(place.begin(), place.end(), -1);  // by node: its rank, then its new place
    for (int64_t i = 0; i < count; ++i) place[order[i]] = i;
    place[0] = 0;
    kept.tokens[to] = old.tokens[from];
    kept.parents[to] = 0;
    kept.depths[to] = old.depths[from];
    kept.scores[to] = old.scores[from];
    for (int64_t i = 1, next = 1; i < old.nodes; ++i) {
      if (place[i] < 0) continue;
      kept.tokens[to + next] = old.tokens[from + i];
      kept.parents[to + next] = std::max<int64_t>(place[old.parents[from + i]], 0);
      kept.depths[to + next] = old.depths[from + i];
      kept.scores[to + next] = place[i] < most ? old.scores[from + i] : NONE<T>;
      place[i] = next++;
    }
  }
}

// `graft`: trees continued by foreseen tokens (images, window) with hits (images, window), and what
// their nodes are worth. reach: (images) the greatest depth. renewal, halved: as in renewal.py.
template <typename T>
void graft(int64_t images, const Trees<T>& old, int64_t window, const int64_t* foreseen,
           const T* hits, const int64_t* reach, double renewal, double halved,
           const Trees<T>& grown, T* worth) {
  const int64_t count = old.nodes;
  std::vector<T> scores(count), total(1 + window);
  std::vector<char> bare(count), best(count);
  const auto at = [](const auto* values, int64_t index, int64_t most) {
    return values[std::min(std::max<int64_t>(index, 0), most)];
  };
  for (int64_t image = 0; image < images; ++image) {
    const int64_t from = image * count, to = image * grown.nodes;
    const int64_t* tokens = foreseen + image * window;
    const T* chances = hits + image * window;
    double sum = 0;
    total[0] = 0;
    for (int64_t i = 0; i < window; ++i) {  // falls in spite of rounding
      sum += chances[i];
      total[1 + i] = i > 0 ? std::min(T(sum), total[i]) : T(sum);
    }
    std::fill(bare.begin(), bare.end(), 1);
    std::fill(best.begin(), best.end(), 0);
    int64_t leaf = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t depth = old.depths[from + i], parent = old.parents[from + i];
      const bool present = old.scores[from + i] > NONE<T>;
      T own = old.scores[from + i] - old.scores[from + parent];
      if (present && depth > 0 && old.tokens[from + i] == at(tokens, depth - 1, window - 1)) {
        own = std::max(own, at(chances, depth - 1, window - 1));
        bare[parent] = 0;
      }
      scores[i] = !present ? NONE<T> : i == 0 ? own : own + scores[parent];
      const int64_t deepest = old.depths[from + leaf];
      if (present && (depth > deepest || (depth == deepest && scores[i] > scores[leaf]))) leaf = i;
      grown.tokens[to + i] = old.tokens[from + i];
      grown.parents[to + i] = parent;
      grown.depths[to + i] = depth;
      grown.scores[to + i] = scores[i];
    }
    for (int64_t i = leaf; i > 0; i = old.parents[from + i]) best[i] = 1;
    best[0] = 1;
    const auto value = [=](int64_t depth, T score, bool renews) {
      const double off = depth / halved;
      const T more = T(renewal * std::exp2(-off * off));
      return std::exp(score) + (renews && score > NONE<T> ? more : T(0));
    };
    for (int64_t i = 0; i < count; ++i) {
      const int64_t depth = old.depths[from + i];
      worth[to + i] = value(depth, scores[i], best[i]);
      for (int64_t step = 1; step <= window; ++step) {
        const int64_t place = to + count + i * window + step - 1, deep = depth + step;
        const T gain = at(total.data(), deep, window) - at(total.data(), depth, window);
        const bool wanted = bare[i] && deep <= std::min(reach[image], window);
        grown.tokens[place] = at(tokens, deep - 1, window - 1);
        grown.parents[place] = step == 1 ? i : place - to - 1;
        grown.depths[place] = deep;
        grown.scores[place] = wanted ? scores[i] + gain : NONE<T>;
        worth[place] = value(deep, grown.scores[place], i == leaf);
      }
    }
  }
}

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
        for (int64_t i = still; i < n; ++i) std::copy_n(begin + own[i] * size, size, &kept[i * size]);
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
