// Vectors of numbers on any processor.
//
// S is the type of hidden states and weights: float, double, or bfloat16, which is computed in
// float. T is that of all arithmetic, and of queries, keys, values and masks.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int BYTES = 64;  // of a vector; compilers split it where the processor has shorter ones

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

// All sums of as many vectors as they have numbers; they are overwritten.
template <typename T, int64_t STEP = WIDE<T> / 2>
inline Vec<T> sums(Vec<T>* each) {
#ifdef __clang__  // has no shuffles for vectors of any length
  Vec<T> found;
  for (int64_t i = 0; i < WIDE<T>; ++i) found[i] = sum<T>(each[i]);
  return found;
#else
  if constexpr (STEP == 0) {
    return each[0];
  } else {  // halves of two vectors are added to one another, which makes one of two
    Int<T> own, other;
    for (int64_t i = 0; i < WIDE<T>; ++i) {
      const int64_t of = (i & STEP) != 0 ? WIDE<T> : 0;
      own[i] = of + i;
      other[i] = of + (i ^ STEP);
    }
    for (int64_t i = 0; i < STEP; ++i)
      each[i] = __builtin_shuffle(each[i], each[i + STEP], own) +
                __builtin_shuffle(each[i], each[i + STEP], other);
    return sums<T, STEP / 2>(each);
  }
#endif
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

}  // namespace
