// Draft trees: what nodes see, new levels, pruning, foreseen tokens.

#pragma once

#include "rounds.h"

namespace {

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
      const int64_t found = std::find(own, own + level, parent) - own;
      const int64_t place = std::min(found, level - 1);
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

}  // namespace
