// The operations between matrix products, each in one pass over memory, for CPUs.
//
// Compiled for float, double, and for bfloat16 that is computed in float. S is the type of hidden
// states and weights, T that of queries, keys, values and masks, and of all arithmetic. Tensors are
// contiguous unless strides are given; sizes count numbers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int BYTES = 64;  // of a vector; compilers split it where the processor has shorter ones

constexpr int64_t MOST_SIZE = 256;  // of a head

template <typename T>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(BYTES)));
  typedef int32_t I __attribute__((vector_size(BYTES)));
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float least = -87.0f, high = 0.693359375f, low = -2.12194440e-4f;
  static constexpr int terms = 7;  // of the Taylor series; what is left out is below rounding
};

template <>
struct Lanes<double> {
  typedef double V __attribute__((vector_size(BYTES)));
  typedef int64_t I __attribute__((vector_size(BYTES)));
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double least = -708.0, high = 0.693145751953125, low = 1.42860682030941723212e-6;
  static constexpr int terms = 13;
};

template <typename T>
using Vec = typename Lanes<T>::V;
template <typename T>
using Int = typename Lanes<T>::I;
template <typename T>
constexpr int64_t WIDE = BYTES / sizeof(T);

struct bfloat16 {
  uint16_t bits;
};

// Read or write numbers of a type S as numbers of type T.
template <typename T>
inline Vec<T> load(const T* from) {
  Vec<T> found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

template <typename T>
inline Vec<T> load(const bfloat16* from) {
  typedef uint16_t Half __attribute__((vector_size(BYTES / 2)));
  typedef uint32_t Whole __attribute__((vector_size(BYTES)));
  Half found;
  std::memcpy(&found, from, sizeof found);
  return (Vec<T>)(__builtin_convertvector(found, Whole) << 16);
}

template <typename T>
inline void store(T* to, Vec<T> value) {
  std::memcpy(to, &value, sizeof value);
}

template <typename T>
inline void store(bfloat16* to, Vec<T> value) {  // rounds to the nearest, ties to even
  typedef uint16_t Half __attribute__((vector_size(BYTES / 2)));
  typedef uint32_t Whole __attribute__((vector_size(BYTES)));
  const Whole bits = (Whole)value;
  const Half found = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Half);
  std::memcpy(to, &found, sizeof found);
}

template <typename T>
inline T sum(Vec<T> value) {
  typedef T Half __attribute__((vector_size(BYTES / 2)));
  typedef T Quarter __attribute__((vector_size(BYTES / 4)));
  Half low, high;
  std::memcpy(&low, &value, sizeof low);
  std::memcpy(&high, (const char*)&value + sizeof low, sizeof high);
  low += high;
  Quarter left, right;
  std::memcpy(&left, &low, sizeof left);
  std::memcpy(&right, (const char*)&low + sizeof left, sizeof right);
  left += right;
  if constexpr (sizeof(T) == 8) return left[0] + left[1];
  else return (left[0] + left[2]) + (left[1] + left[3]);
}

// exp(x): 2^n by the exponent's bits, times a polynomial of the rest. 0 below `least`, and above
// -least the greatest number that it knows.
template <typename T>
inline Vec<T> exponential(Vec<T> x) {
  using L = Lanes<T>;
  const Vec<T> log2e = Vec<T>{} + T(1.4426950408889634074);
  const auto dead = x < L::least;
  const Vec<T> most = Vec<T>{} - L::least;
  x = dead ? Vec<T>{} : x > most ? most : x;
  const T shifter = T(3) * T(int64_t(1) << (L::mantissa - 1));  // adding it rounds to an integer
  Vec<T> whole = x * log2e + shifter;
  const Int<T> power = (Int<T>)whole << L::mantissa;
  whole -= shifter;
  Vec<T> rest = x - whole * L::high;
  rest = rest - whole * L::low;
  Vec<T> found = Vec<T>{} + T(1);
  for (int i = L::terms; i > 0; --i) found = found * rest * T(1.0 / i) + T(1);
  const Vec<T> scaled = (Vec<T>)((Int<T>)found + power);
  return dead ? Vec<T>{} : scaled;
}

// out = norm(x) * weight. With `more`, x += more comes first; with `back`, back += the result, and
// nothing goes out.
template <typename S, typename T>
void rms_norm(int64_t tokens, int64_t width, S* x, const S* more, const S* weight, T eps, S* out,
              S* back) {
  for (int64_t token = 0; token < tokens; ++token, x += width) {
    Vec<T> squares{};
    for (int64_t i = 0; i < width; i += WIDE<T>) {
      if (more != nullptr) store<T>(x + i, load<T>(x + i) + load<T>(more + token * width + i));
      squares += load<T>(x + i) * load<T>(x + i);
    }
    const T scale = 1 / std::sqrt(sum<T>(squares) / width + eps);
    for (int64_t i = 0; i < width; i += WIDE<T>) {
      const Vec<T> found = load<T>(x + i) * (load<T>(weight + i) * scale);
      if (back == nullptr) store<T>(out + token * width + i, found);
      else store<T>(back + token * width + i, load<T>(back + token * width + i) + found);
    }
  }
}

// silu(gate) * up of rows (gate, up)
template <typename S, typename T>
void gate(int64_t tokens, int64_t width, const S* both, S* out) {
#pragma omp parallel for if (tokens * width > 16384)
  for (int64_t token = 0; token < tokens; ++token) {
    const S *left = both + token * 2 * width, *right = left + width;
    for (int64_t i = 0; i < width; i += WIDE<T>) {
      const Vec<T> x = load<T>(left + i);
      const Vec<T> silu = x / (T(1) + exponential<T>(-x));
      store<T>(out + token * width + i, silu * load<T>(right + i));
    }
  }
}

// What all layers read in a pass; see `Layout` in fused.py.
struct Layout {
  int64_t rows, tokens, heads, kv_heads, size;  // size: of a head
  int64_t slots, row_stride, head_stride;       // of keys and values
  int64_t mask_row, mask_token;                 // strides
  int64_t pairs;                                // whether neighbouring channels rotate together
  const void *rotation, *mask;
  const int64_t* places;
  void* queries;
};

template <typename S, typename T>
inline void turn(const T* x, const S* cos, const S* sin, int64_t size, bool pairs, T* out) {
  const int64_t half = size / 2;
  if (pairs) {
    for (int64_t i = 0; i < size; i += 2) {
      const T left = x[i], right = x[i + 1];
      out[i] = left * T(cos[i]) + right * T(sin[i]);
      out[i + 1] = right * T(cos[i + 1]) + left * T(sin[i + 1]);
    }
  } else {
    for (int64_t i = 0; i < half; ++i) {
      const T left = x[i], right = x[half + i];
      out[i] = left * T(cos[i]) + right * T(sin[i]);
      out[half + i] = right * T(cos[half + i]) + left * T(sin[half + i]);
    }
  }
}

// Normalise and rotate queries and keys; store keys and values at their slots of the cache.
//
// qkv: (rows, tokens, heads + 2 kv_heads, size). weight, bias: (heads + kv_heads, size) or null.
template <typename S, typename T>
void split_heads(const Layout& s, const S* qkv, const S* weight, const S* bias, T* keys,
                 T* values) {
  const int64_t size = s.size;
  const T* rotation = (const T*)s.rotation;
  T* queries = (T*)s.queries;
  T normed[MOST_SIZE];
  for (int64_t place = 0; place < s.rows * s.tokens; ++place) {
    const int64_t row = place / s.tokens, token = place % s.tokens;
    const S* x = qkv + place * (s.heads + 2 * s.kv_heads) * size;
    const T *cos = rotation + place * 2 * size, *sin = cos + size;
    const int64_t cached = row * s.row_stride + s.places[place] * size;
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

// Attention of some queries of a head to all keys: out = softmax(q k + mask) v.
template <typename S, typename T, int DEEP, int MANY>
void read_head(const T* const* queries, const T* const* masks, S* const* outs, const T* keys,
               const T* values, int64_t slots, T* scores) {
  constexpr int64_t D = DEEP * WIDE<T>;
  const T scale = 1 / std::sqrt(T(D));
  const int64_t room = (slots + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
  for (int64_t slot = 0; slot < slots; ++slot) {
    Vec<T> total[MANY];
    for (int q = 0; q < MANY; ++q) total[q] = Vec<T>{};
    for (int d = 0; d < DEEP; ++d) {
      const Vec<T> key = load<T>(keys + slot * D + d * WIDE<T>);
      for (int q = 0; q < MANY; ++q) total[q] += key * load<T>(queries[q] + d * WIDE<T>);
    }
    for (int q = 0; q < MANY; ++q)
      scores[q * room + slot] = sum<T>(total[q]) * scale + masks[q][slot];
  }
  T shares[MANY];
  for (int q = 0; q < MANY; ++q) {
    T* own = scores + q * room;
    for (int64_t i = slots; i < room; ++i) own[i] = -std::numeric_limits<T>::infinity();
    Vec<T> greatest = load<T>(own);
    for (int64_t i = WIDE<T>; i < room; i += WIDE<T>) {
      const Vec<T> next = load<T>(own + i);
      greatest = next > greatest ? next : greatest;
    }
    T most = greatest[0];
    for (int i = 1; i < WIDE<T>; ++i) most = greatest[i] > most ? greatest[i] : most;
    Vec<T> total{};
    for (int64_t i = 0; i < room; i += WIDE<T>) {
      const Vec<T> share = exponential<T>(load<T>(own + i) - most);
      store<T>(own + i, share);
      total += share;
    }
    shares[q] = 1 / sum<T>(total);
  }
  Vec<T> found[MANY][DEEP];
  for (int q = 0; q < MANY; ++q)
    for (int d = 0; d < DEEP; ++d) found[q][d] = Vec<T>{};
  for (int64_t slot = 0; slot < slots; ++slot) {
    Vec<T> value[DEEP];
    for (int d = 0; d < DEEP; ++d) value[d] = load<T>(values + slot * D + d * WIDE<T>);
    for (int q = 0; q < MANY; ++q)
      for (int d = 0; d < DEEP; ++d) found[q][d] += value[d] * scores[q * room + slot];
  }
  for (int q = 0; q < MANY; ++q)
    for (int d = 0; d < DEEP; ++d) store<T>(outs[q] + d * WIDE<T>, found[q][d] * shares[q]);
}

// out: (rows, tokens, heads, size).
template <typename S, typename T, int DEEP>
void attend_to(const Layout& s, const T* keys, const T* values, S* out) {
  constexpr int MOST = 4;  // queries that read a key while it is in registers
  const int64_t D = s.size, shared = s.heads / s.kv_heads, slots = s.slots;
  const T *queries = (const T*)s.queries, *mask = (const T*)s.mask;
  const int64_t room = (slots + WIDE<T> - 1) / WIDE<T> * WIDE<T>;
  const int64_t own = shared * s.tokens;  // queries of a key head
  const int64_t parts = (own + MOST - 1) / MOST;
#pragma omp parallel if (s.rows * s.heads * s.tokens * slots > 8192)
  {
    std::vector<T> scores(MOST * room);
#pragma omp for
    for (int64_t task = 0; task < s.rows * s.kv_heads * parts; ++task) {
      const int64_t part = task % parts, head = task / parts % s.kv_heads,
                    row = task / parts / s.kv_heads;
      const T *k = keys + row * s.row_stride + head * s.head_stride,
              *v = values + row * s.row_stride + head * s.head_stride;
      const T *asked[MOST], *masks[MOST];
      S* outs[MOST];
      const int64_t first = part * MOST, count = own - first < MOST ? own - first : MOST;
      for (int64_t q = 0; q < count; ++q) {
        const int64_t head_of = head * shared + (first + q) / s.tokens,
                      token = (first + q) % s.tokens;
        asked[q] = queries + ((row * s.heads + head_of) * s.tokens + token) * D;
        masks[q] = mask + row * s.mask_row + token * s.mask_token;
        outs[q] = out + ((row * s.tokens + token) * s.heads + head_of) * D;
      }
      switch (count) {
        case 4: read_head<S, T, DEEP, 4>(asked, masks, outs, k, v, slots, scores.data()); break;
        case 3: read_head<S, T, DEEP, 3>(asked, masks, outs, k, v, slots, scores.data()); break;
        case 2: read_head<S, T, DEEP, 2>(asked, masks, outs, k, v, slots, scores.data()); break;
        default: read_head<S, T, DEEP, 1>(asked, masks, outs, k, v, slots, scores.data());
      }
    }
  }
}

// qkv: (rows, tokens, heads + 2 kv_heads, size). keys, values: (rows, kv_heads, slots, size).
template <typename S, typename T>
void attention(const Layout& s, const S* qkv, const S* weight, const S* bias, T* keys, T* values,
               S* out) {
  split_heads<S, T>(s, qkv, weight, bias, keys, values);
  switch (s.size / WIDE<T>) {
    case 1: return attend_to<S, T, 1>(s, keys, values, out);
    case 2: return attend_to<S, T, 2>(s, keys, values, out);
    case 4: return attend_to<S, T, 4>(s, keys, values, out);
    case 8: return attend_to<S, T, 8>(s, keys, values, out);
    default: return attend_to<S, T, 16>(s, keys, values, out);
  }
}

}  // namespace

#define KERNELS(NAME, S, T)                                                                       \
  extern "C" void adt_norm_##NAME(int64_t tokens, int64_t width, S* x, const S* more,             \
                                  const S* weight, double eps, S* out, S* back) {                 \
    rms_norm<S, T>(tokens, width, x, more, weight, T(eps), out, back);                            \
  }                                                                                               \
  extern "C" void adt_gate_##NAME(int64_t tokens, int64_t width, const S* both, S* out) {         \
    gate<S, T>(tokens, width, both, out);                                                         \
  }                                                                                               \
  extern "C" void adt_attention_##NAME(const Layout* layout, const S* qkv, const S* weight,       \
                                       const S* bias, T* keys, T* values, S* out) {               \
    attention<S, T>(*layout, qkv, weight, bias, keys, values, out);                               \
  }

KERNELS(fp32, float, float)
KERNELS(fp64, double, double)
KERNELS(bf16, bfloat16, float)
