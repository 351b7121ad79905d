// All layers of a transformer in one call, for a few tokens.

#pragma once

#include "attention.h"
#include "products.h"

namespace {

struct Layer {  // weights; null where a layer has none
  const void *attention_norm, *qkv, *head_weight, *head_bias, *out;
  const void *mlp_norm, *gate_up, *down;
};

// out = norm(x) * weight or, with `add`, out += norm(x) * weight
template <typename S, typename T>
void rms_norm(int64_t tokens, int64_t width, const S* x, const S* weight, T eps, bool add,
              S* out) {
#pragma omp for schedule(static)
  for (int64_t token = 0; token < tokens; ++token) {
    const S* from = x + token * width;
    S* to = out + token * width;
    Vec<T> squares{};
    for (int64_t i = 0; i < width; i += WIDE<T>) squares += load<T>(from + i) * load<T>(from + i);
    const T scale = 1 / std::sqrt(sum<T>(squares) / width + eps);
    for (int64_t i = 0; i < width; i += WIDE<T>) {
      const Vec<T> found = load<T>(from + i) * (load<T>(weight + i) * scale);
      store<T>(to + i, add ? load<T>(to + i) + found : found);
    }
  }
}

// Memory of a thread that stays between calls, one for each number.
template <typename S, int NUMBER>
S* room_for(int64_t count) {
  static thread_local std::vector<S> room;
  if (int64_t(room.size()) < count) room.resize(count);
  return room.data();
}

// x (rows, tokens, hidden) becomes what it is after the layers; states: (kept, rows, tokens,
// hidden) of it after some of them. Both are normalised in the end, if there is a norm.
template <typename S, typename T, typename W>
void run(const Pass& s, S* x, S* states) {
  const int64_t tokens = s.rows * s.tokens, hidden = s.hidden, inner = s.intermediate;
  const int64_t wide = (s.heads + 2 * s.kv_heads) * s.size;
  S *normed = room_for<S, 0>(tokens * hidden), *qkv = room_for<S, 1>(tokens * wide);
  S *found = room_for<S, 2>(tokens * hidden), *gated = room_for<S, 3>(tokens * inner);
  T* queries = room_for<T, 4>(tokens * hidden);
  const auto keep = [](S* to, int64_t outputs) {
    return [=](int64_t token, int64_t place, const Vec<T>(&sums)[2]) {
      S* out = to + token * outputs + place;
      store<T>(out, sums[0]);
      store<T>(out + half_of<T>(outputs), sums[1]);
    };
  };
  const auto add = [=](int64_t token, int64_t place, const Vec<T>(&sums)[2]) {
    S *left = x + token * hidden + place, *right = left + half_of<T>(hidden);
    store<T>(left, load<T>(left) + sums[0]);
    store<T>(right, load<T>(right) + sums[1]);
  };
  const auto gate = [=](int64_t token, int64_t place, const Vec<T>(&sums)[2]) {
    const Vec<T> silu = sums[0] / (T(1) + exponential<T>(-sums[0]));
    store<T>(gated + token * inner + place, silu * sums[1]);
  };
  const T eps = T(s.eps);
#pragma omp parallel
  {
    for (int64_t number = 0; number < s.count; ++number) {
      const Layer& layer = s.layers[number];
      const S* attention_norm = (const S*)layer.attention_norm;
      const S* mlp_norm = (const S*)layer.mlp_norm;
      T *keys = (T*)s.memory + 2 * number * s.layer_stride, *values = keys + s.layer_stride;
      const bool first_norm = !s.swin && attention_norm != nullptr;
      if (first_norm) rms_norm<S, T>(tokens, hidden, x, attention_norm, eps, false, normed);
      product<T>(tokens, hidden, wide, first_norm ? normed : x, (const W*)layer.qkv,
                    keep(qkv, wide));
      split_heads<S, T>(s, qkv, (const S*)layer.head_weight, (const S*)layer.head_bias, queries,
                        keys, values);
      attend<S, T>(s, queries, keys, values, found);
      if (s.swin) {
        product<T>(tokens, hidden, hidden, found, (const W*)layer.out, keep(normed, hidden));
        rms_norm<S, T>(tokens, hidden, normed, attention_norm, eps, true, x);
        product<T>(tokens, hidden, 2 * inner, x, (const W*)layer.gate_up, gate);
        product<T>(tokens, inner, hidden, gated, (const W*)layer.down, keep(normed, hidden));
        rms_norm<S, T>(tokens, hidden, normed, mlp_norm, eps, true, x);
      } else {
        product<T>(tokens, hidden, hidden, found, (const W*)layer.out, add);
        rms_norm<S, T>(tokens, hidden, x, mlp_norm, eps, false, normed);
        product<T>(tokens, hidden, 2 * inner, normed, (const W*)layer.gate_up, gate);
        product<T>(tokens, inner, hidden, gated, (const W*)layer.down, add);
      }
      for (int64_t i = 0; i < s.kept; ++i)
        if (s.numbers[i] == number + 1) {
#pragma omp single
          std::memcpy(states + i * tokens * hidden, x, tokens * hidden * sizeof(S));
        }
    }
    if (s.norm != nullptr) {
      rms_norm<S, T>(tokens, hidden, x, (const S*)s.norm, eps, false, x);
      rms_norm<S, T>(s.kept * tokens, hidden, states, (const S*)s.norm, eps, false, states);
    }
  }
}

}  // namespace
