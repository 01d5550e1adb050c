// Sixteen numbers at a time, by the vector types of GCC and Clang: AVX-512, AVX2 or NEON, whatever the machine has.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace selfspec {

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(64), aligned(4)));
typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1)));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2)));

template <class To, class From> inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class Vector, class Element> inline Vector load(const Element* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline void store(Floats vector, float* to) { std::memcpy(to, &vector, sizeof vector); }

// bfloat16 is the upper half of a float32.
inline float widen(uint16_t half) { return bits<float>(uint32_t(half) << 16); }
inline float widen(float value) { return value; }
inline Floats widen(const float* from) { return load<Floats>(from); }
inline Floats widen(const uint16_t* from) {
  return bits<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

// Rounds to nearest, ties to even, as torch does; NaN stays NaN.
inline void narrow(float value, float* to) { *to = value; }
inline void narrow(Floats value, float* to) { store(value, to); }
inline void narrow(float value, uint16_t* to) {
  const uint32_t word = bits<uint32_t>(value);
  *to = value != value ? 0x7fc0 : uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}
inline Words upper_half(Floats value) {
  const Words word = bits<Words>(value), up = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  return value != value ? Words{} + 0x7fc0u : up;
}
inline void narrow(Floats value, uint16_t* to) {
  const Halves halves = __builtin_convertvector(upper_half(value), Halves);
  std::memcpy(to, &halves, sizeof halves);
}

template <class T> inline float rounded(float value) {
  T held;
  narrow(value, &held);
  return widen(held);
}
template <class T> inline Floats rounded(Floats value) {
  if constexpr (sizeof(T) == 4) return value;
  return bits<Floats>(upper_half(value) << 16);
}

// Calls `body(i, lanes)` over `count` elements, a vector's worth and then one at a time: `body` takes an example of
// what it is to load, a vector or a number.
template <class Body> inline void sweep(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Floats{});
  for (; i < count; ++i) body(i, float{});
}
template <class T> inline Floats read(const T* from, Floats) { return widen(from); }
template <class T> inline float read(const T* from, float) { return widen(*from); }

// Chosen entries of a table of sixteen; only the low four bits of an index count.
inline Floats look_up(Floats table, Words index) {
#if defined(__clang__)
  Floats chosen;
  for (int lane = 0; lane < kLanes; ++lane) chosen[lane] = table[index[lane] & 15];
  return chosen;
#else
  return __builtin_shuffle(table, bits<Ints>(index));
#endif
}

// Chosen elements of two vectors, one behind the other.
inline Floats chosen(Floats first, Floats second, Ints index) {
#if defined(__clang__)
  Floats found;
  for (int i = 0; i < kLanes; ++i) found[i] = index[i] < kLanes ? first[index[i]] : second[index[i] - kLanes];
  return found;
#else
  return __builtin_shuffle(first, second, index);
#endif
}

// A matrix [16, C], row after row in C vectors -> [C, 16]. A pass moves the lowest bit of every element's index to the
// top; after log2 C of them columns have become rows.
template <int C> inline void turn(Floats v[C]) {
  const Ints even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}, odd = even + 1;
  for (int pass = 1; pass < C; pass *= 2) {
    Floats next[C];
    for (int i = 0; i < C / 2; ++i) {
      next[i] = chosen(v[2 * i], v[2 * i + 1], even);
      next[C / 2 + i] = chosen(v[2 * i], v[2 * i + 1], odd);
    }
    for (int i = 0; i < C; ++i) v[i] = next[i];
  }
}

inline float sum(Floats v) {
#if !defined(__clang__)
  v += __builtin_shuffle(v, Ints{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  v += __builtin_shuffle(v, Ints{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  v += __builtin_shuffle(v, Ints{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return v[0] + v[1];
#else
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int lane = 0; lane < step; ++lane) v[lane] += v[lane + step];
  return v[0];
#endif
}

// The sums of sixteen vectors, one to a lane.
inline Floats sums(Floats v[kLanes]) {
#if defined(__AVX512F__) && !defined(__clang__)
  constexpr Ints kHalves[2][4] = {
      {{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
       {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27},
       {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29},
       {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}},
      {{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31},
       {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31},
       {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31},
       {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31}}};
  for (int level = 0, count = kLanes / 2; count > 0; ++level, count /= 2)
    for (int i = 0; i < count; ++i)
      v[i] = __builtin_shuffle(v[i], v[i + count], kHalves[0][level]) +
             __builtin_shuffle(v[i], v[i + count], kHalves[1][level]);
  return v[0];
#else
  Floats all;
  for (int lane = 0; lane < kLanes; ++lane) all[lane] = sum(v[lane]);
  return all;
#endif
}

// e^x for x <= 0, to about two units in the last place (the Cephes polynomial); exactly 0 where it underflows, so
// that a masked score leaves no trace.
inline Floats exponential(Floats x) {
  const Floats low = Floats{} - 87.0f;
  const Floats clamped = x < low ? low : x;
  const Ints n = __builtin_convertvector(clamped * 1.44269504f - 0.5f, Ints);
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = clamped - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return x < low ? Floats{} : p * bits<Floats>((n + 127) << 23);
}

// x times its logistic function, to about the same accuracy.
inline Floats silu(Floats x) {
  const Floats decay = exponential(x < 0 ? x : -x);
  return x * (x < 0 ? decay : Floats{} + 1.0f) / (1.0f + decay);
}
inline float silu(float x) { return silu(Floats{} + x)[0]; }

}  // namespace selfspec
