// A pass from codes to distributions in one call.

#pragma once

#include "network.h"
#include "slots.h"

namespace {

// A pass over tokens (images, tokens), for all guidance rows; see `Whole` in whole_pass.py.
struct Whole {
  Pass pass;
  int64_t images, guidance, latest, last, first_id, vocab;
  const int64_t *committed, *origins, *codes, *depths, *scored;
  int64_t code_image, depth_image, depth_token, block_image, block_token, block_slot;
  int64_t pad_row, feature_row;
  const bool* block;
  const void *pads, *embedding, *features, *mix, *bias, *head;
  double cfg, temperature, rest;
  void *found, *logits, *log_p;
  struct Judged {  // trees for `judge`; null for none
    const void* noise;
    const int64_t *tokens, *parents, *depths;
    const void* scores;
    int64_t *choices, *path, *emitted, *accepted;
    double* figures;
  } const* trees;
};

// Read tokens: embeddings, mixed with features where there are any, pass all layers. Keeps
// features and hidden states (rows, n, 1 + kept, hidden), logits (rows, n, vocab) and log p
// (images, n, vocab) of all tokens, or of the one that `scored` names for each image. Judges trees
// whose nodes the tokens are. rest: seconds of what is not the network.
template <typename S, typename T>
void read(Whole& s) {
  const double started = omp_get_wtime();
  Pass& pass = s.pass;
  const int64_t rows = pass.rows, n = pass.tokens, hidden = pass.hidden, stop = pass.slots;
  const int64_t inputs = s.mix == nullptr ? 1 : 2, each = s.scored == nullptr ? n : 1;
  const bool bare = n == 1 && s.latest == 1 && s.images == 1;
  static thread_local std::vector<char> room;
  int64_t *positions = nullptr, *places = nullptr, *stops = nullptr;
  T* mask = nullptr;
  S *input = nullptr, *x = nullptr, *states = nullptr, *chosen = nullptr;
  for (size_t used = 0; chosen == nullptr; used = 0) {
    positions = take<int64_t>(room, used, rows * n);
    places = take<int64_t>(room, used, rows * n);
    stops = take<int64_t>(room, used, rows);
    mask = take<T>(room, used, bare ? 0 : rows * n * stop);
    input = take<S>(room, used, s.mix == nullptr ? 0 : rows * n * inputs * hidden);
    x = take<S>(room, used, rows * n * hidden);
    states = take<S>(room, used, pass.kept * rows * n * hidden);
    chosen = take<S>(room, used, rows * each * hidden);
    if (chosen == nullptr) room.resize(used);
  }
  open<T>(s.images, s.guidance, n, s.latest, stop, s.committed, s.origins, s.last, s.depths,
          s.depth_image, s.depth_token, s.block, s.block_image, s.block_token, s.block_slot,
          (const T*)s.pads, s.pad_row, s.latest == stop, positions, bare ? nullptr : mask);
  pass.positions = positions;
  pass.mask = bare ? s.pads : mask;
  pass.mask_row = bare ? s.pad_row : n * stop;
  pass.mask_token = stop;
  pass.places = pass.stops = nullptr;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t image = row / s.guidance, first = s.committed[image] + s.latest - n;
    stops[row] = first + n;
    if (first + n != stop) {
      pass.places = places;
      pass.stops = stops;
    }
    S* to = (s.mix == nullptr ? x : input) + row * n * inputs * hidden;
    for (int64_t token = 0; token < n; ++token, to += inputs * hidden) {
      const int64_t id = s.codes[image * s.code_image + token] + s.first_id;
      places[row * n + token] = first + token;
      std::copy_n((const S*)s.embedding + id * hidden, hidden, to);
      if (s.mix != nullptr)
        std::copy_n((const S*)s.features + row * s.feature_row + token * hidden, hidden,
                    to + hidden);
    }
  }
  const double opened = omp_get_wtime();
  if (s.mix != nullptr)
    linear<S, T>(rows * n, 2 * hidden, hidden, input, (const S*)s.mix, (const S*)s.bias, x);
  run<S, T>(pass, x, states);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < each; ++i) {
      const int64_t token = row * n + (s.scored == nullptr ? i : s.scored[row / s.guidance]);
      const int64_t place = row * each + i;
      S* to = (S*)s.found + place * (1 + pass.kept) * hidden;
      std::copy_n(x + token * hidden, hidden, chosen + place * hidden);
      std::copy_n(x + token * hidden, hidden, to);
      for (int64_t state = 0; state < pass.kept; ++state)
        std::copy_n(states + (state * rows * n + token) * hidden, hidden,
                    to + (1 + state) * hidden);
    }
  linear<S, T>(rows * each, hidden, s.vocab, chosen, (const S*)s.head, nullptr, (S*)s.logits);
  const double scored = omp_get_wtime();
  if (s.log_p != nullptr)
    log_p<S, T>(s.images, each, s.vocab, s.guidance, s.cfg, s.temperature, (const S*)s.logits,
                (T*)s.log_p);
  if (const auto* trees = s.trees; trees != nullptr)
    judge<T>(s.images, n, s.vocab, (const T*)s.log_p, *(const Noise<T>*)trees->noise,
             trees->tokens, trees->parents, trees->depths, (const T*)trees->scores,
             trees->choices, trees->path, trees->emitted, trees->accepted, trees->figures);
  s.rest = omp_get_wtime() - scored + (opened - started);
}

}  // namespace
