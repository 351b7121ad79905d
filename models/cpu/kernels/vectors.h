// Vectors of numbers on any processor.
//
// S is the type of hidden states: float, double, or bfloat16, which is computed in float. T is that
// of all arithmetic, and of queries, keys, values and masks; W that of weights in memory.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

// Bytes of a vector: those of the processor's registers. A compiler accepts longer ones, too, but
// GCC then keeps them in memory, which makes products 20 times as slow.
#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX2__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

// Vectors that the processor keeps in registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

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

struct float16 {  // of weights only, which are finite
  uint16_t bits;
};

// A number in every lane; 0 + number would not keep the sign of 0, and so costs an addition.
template <typename T>
inline Vec<T> spread(T number) {
  return number - Vec<T>{};
}

// a b + c, rounded once where the processor can. The compiler is forbidden to choose by itself: it
// chooses differently in copies of a function for one token and for several, which then differ.
inline Vec<float> multiply_add(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && defined(__AVX2__)
  return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

inline Vec<double> multiply_add(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__) && defined(__AVX2__)
  return (Vec<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
  return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

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
inline Vec<T> load(const float16* from) {
#if defined(__AVX512F__)
  return (Vec<T>)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__) && defined(__AVX2__)
  return (Vec<T>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else  // its exponent, moved to where that of a float stands, is 112 too small
  typedef uint16_t Half __attribute__((vector_size(BYTES / 2)));
  typedef uint32_t Whole __attribute__((vector_size(BYTES)));
  Half found;
  std::memcpy(&found, from, sizeof found);
  const Whole bits = __builtin_convertvector(found, Whole);
  const Vec<T> size = (Vec<T>)((bits & 0x7fff) << 13) * T(0x1p112);
  return (Vec<T>)((Whole)size | (bits & 0x8000) << 16);
#endif
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

// The halves of a vector are added to one another until two numbers are left.
template <typename T, int SIZE = BYTES>
inline T sum(const void* value) {
  typedef T Half __attribute__((vector_size(SIZE / 2)));
  Half low, high;
  std::memcpy(&low, value, sizeof low);
  std::memcpy(&high, (const char*)value + sizeof low, sizeof high);
  low += high;
  if constexpr (SIZE == 4 * sizeof(T)) return low[0] + low[1];
  else return sum<T, SIZE / 2>(&low);
}

template <typename T>
inline T sum(Vec<T> value) {
  if constexpr (WIDE<T> == 2) return value[0] + value[1];
  else return sum<T, BYTES>(&value);
}

// Of two vectors, number i of the first where bit STEP of i is not set, else of the second; with
// OTHER the numbers STEP away from these.
template <typename T, int64_t STEP, bool OTHER, size_t... I>
inline Vec<T> pick(Vec<T> first, Vec<T> second, std::index_sequence<I...>) {
#ifdef __clang__
#define SHUFFLE(...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else  // GCC before version 12 has no __builtin_shufflevector
#define SHUFFLE(...) __builtin_shuffle(first, second, Int<T>{__VA_ARGS__})
#endif
  return SHUFFLE(((I & STEP) != 0 ? WIDE<T> : 0) + (OTHER ? I ^ STEP : I)...);
#undef SHUFFLE
}

// All sums of as many vectors as they have numbers; they are overwritten.
template <typename T, int64_t STEP = WIDE<T> / 2>
inline Vec<T> sums(Vec<T>* each) {
  if constexpr (STEP == 0) {
    return each[0];
  } else {  // halves of two vectors are added to one another, which makes one of two
    const auto numbers = std::make_index_sequence<WIDE<T>>();
    for (int64_t i = 0; i < STEP; ++i)
      each[i] = pick<T, STEP, false>(each[i], each[i + STEP], numbers) +
                pick<T, STEP, true>(each[i], each[i + STEP], numbers);
    return sums<T, STEP / 2>(each);
  }
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
  Vec<T> whole = multiply_add(x, log2e, spread<T>(shifter));
  const Int<T> power = (Int<T>)whole << L::mantissa;
  whole -= shifter;
  Vec<T> rest = multiply_add(whole, spread<T>(-L::high), x);
  rest = multiply_add(whole, spread<T>(-L::low), rest);
  Vec<T> found = Vec<T>{} + T(1);
  for (int i = L::terms; i > 0; --i)
    found = multiply_add(found * rest, spread<T>(T(1.0 / i)), spread<T>(T(1)));
  const Vec<T> scaled = (Vec<T>)((Int<T>)found + power);
  return dead ? Vec<T>{} : scaled;
}

}  // namespace
