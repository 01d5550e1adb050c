// Softmax attention of a few rows to a cache: grouped heads are never repeated, and only what is live is read.
//
// Queries of one key head share what they read of it, up to four at a time. What a query adds up, and in which order,
// depends on the keys that it sees alone: its bits are the same whatever stands beside it.
#pragma once
#include <omp.h>

#include <vector>

#include "vectors.h"

namespace selfspec {

constexpr int kQueries = 4;  // as many as have their sums in registers

struct Attention {
  const void *q, *k, *v;          // q [heads, rows, dim]; k, v [kv_heads, live, dim]
  int64_t k_stride, v_stride;     // elements from one key head to the next
  const uint8_t* mask;            // [rows, live], 0 = unseen; null: all is seen
  int64_t mask_stride;
  int64_t heads, kv_heads, rows, live, dim;  // dim is a multiple of 16
  float scale, softcap;           // softcap 0: none

  int64_t group() const { return heads / kv_heads; }
  int64_t padded() const { return (live + kLanes - 1) / kLanes * kLanes; }
};

inline float* scratch(size_t floats) {
  static thread_local std::vector<float> held;
  if (held.size() < floats) held.resize(floats);
  return held.data();
}

// G queries of one key head.
template <class T, int G> struct Attend {
  const Attention& a;
  int64_t key_head, first;  // of the queries of the key head: [group, rows]
  float *scores, *query;    // one thread's scratch: [G, padded], [G, dim]

  int64_t row(int g) const { return (first + g) % a.rows; }
  int64_t head(int g) const { return key_head * a.group() + (first + g) / a.rows; }
  const uint8_t* seen(int g) const { return a.mask + row(g) * a.mask_stride; }

  void operator()(T* out) const {
    for (int g = 0; g < G; ++g) {
      const T* from = static_cast<const T*>(a.q) + (head(g) * a.rows + row(g)) * a.dim;
      for (int64_t i = 0; i < a.dim; i += kLanes) store(widen(from + i), query + g * a.dim + i);
    }
    const T* keys = static_cast<const T*>(a.k) + key_head * a.k_stride;
    for (int64_t j = 0; j < a.live; j += kLanes)
      if (is_seen(j)) score(keys, j);
    float mass[G];
    for (int g = 0; g < G; ++g) mass[g] = weigh(g);
    const T* values = static_cast<const T*>(a.v) + key_head * a.v_stride;
    int64_t i = 0;
    for (; i + 4 * kLanes <= a.dim; i += 4 * kLanes) gather<4>(values, mass, i, out);
    for (; i < a.dim; i += kLanes) gather<1>(values, mass, i, out);
  }

  // Whether a query sees any of the sixteen keys from `j` on; the scores of those that none sees are left alone.
  bool is_seen(int64_t j) const {
    if (!a.mask) return true;
    const int64_t count = a.live - j < kLanes ? a.live - j : kLanes;
    uint8_t any = 0;
    for (int g = 0; g < G; ++g)
      for (int64_t i = 0; i < count; ++i) any |= seen(g)[j + i];
    return any;
  }

  // Scores of sixteen keys; behind the last one, that of the last again.
  void score(const T* keys, int64_t j) const {
    Floats parts[G][kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const T* at = keys + (j + lane < a.live ? j + lane : a.live - 1) * a.dim;
      Floats total[G] = {};
      for (int64_t i = 0; i < a.dim; i += kLanes) {
        const Floats key = widen(at + i);
        for (int g = 0; g < G; ++g) total[g] += load<Floats>(query + g * a.dim + i) * key;
      }
      for (int g = 0; g < G; ++g) parts[g][lane] = total[g];
    }
    for (int g = 0; g < G; ++g) {
      float* to = scores + g * a.padded() + j;
      store(sums(parts[g]) * a.scale, to);
      if (a.softcap > 0)
        for (int lane = 0; lane < kLanes; ++lane) to[lane] = std::tanh(to[lane] / a.softcap) * a.softcap;
    }
  }

  // Scores of sixteen keys, -inf where unseen. Behind a row's own position nothing is seen, so that its bits do not
  // depend on how many keys follow it.
  Floats seen_scores(int g, int64_t j) const {
    Floats found = load<Floats>(scores + g * a.padded() + j);
    if (j + kLanes > a.live)
      for (int64_t lane = a.live - j; lane < kLanes; ++lane) found[lane] = -INFINITY;
    if (!a.mask) return found;
    Bytes bytes = {};
    std::memcpy(&bytes, seen(g) + j, j + kLanes > a.live ? a.live - j : kLanes);
    return __builtin_convertvector(bytes, Words) != 0 ? found : Floats{} - INFINITY;
  }

  // Turns scores into weights; returns their sum. What is unseen weighs exactly zero.
  float weigh(int g) const {
    float* own = scores + g * a.padded();
    Floats most = Floats{} - INFINITY, mass = {};
    for (int64_t j = 0; j < a.padded(); j += kLanes) {
      const Floats found = seen_scores(g, j);
      store(found, own + j);
      most = found > most ? found : most;
    }
    float highest = most[0];
    for (int lane = 1; lane < kLanes; ++lane) highest = most[lane] > highest ? most[lane] : highest;
    if (highest == -INFINITY) highest = 0.0f;  // nothing is seen: all weights are then zero, and so is what is said
    for (int64_t j = 0; j < a.padded(); j += kLanes) {
      const Floats weight = exponential(load<Floats>(own + j) - highest);
      store(weight, own + j);
      mass += weight;
    }
    const float whole = sum(mass);
    return whole == 0.0f ? 1.0f : whole;
  }

  // P vectors of the weighted values from element `i` on. Values of weight zero are not touched: nobody has said that
  // they are numbers.
  template <int P> void gather(const T* values, const float mass[G], int64_t i, T* out) const {
    Floats total[G][P] = {};
    for (int64_t j = 0; j < a.live; ++j) {
      Floats value[P];
      for (int part = 0; part < P; ++part) value[part] = widen(values + j * a.dim + i + part * kLanes);
      for (int g = 0; g < G; ++g) {
        const float weight = scores[g * a.padded() + j];
        if (weight != 0.0f)
          for (int part = 0; part < P; ++part) total[g][part] += weight * value[part];
      }
    }
    for (int g = 0; g < G; ++g)
      for (int part = 0; part < P; ++part)
        narrow(total[g][part] / mass[g], out + (row(g) * a.heads + head(g)) * a.dim + i + part * kLanes);
  }
};

template <class T, int G = kQueries>
void attend(int64_t count, const Attention& a, int64_t key_head, int64_t first, float* held, T* out) {
  if constexpr (G > 1)
    if (count < G) return attend<T, G - 1>(count, a, key_head, first, held, out);
  Attend<T, G>{a, key_head, first, held, held + G * a.padded()}(out);
}

// Softmax attention; out [rows, heads, dim].
template <class T> void attention(const Attention& a, T* out, int threads) {
  const int64_t queries = a.group() * a.rows, share = kQueries * (a.padded() + a.dim);
  int64_t most = a.heads * a.rows / threads;
  most = most < 1 ? 1 : most > kQueries ? kQueries : most;
  const int64_t chunks = (queries + most - 1) / most;
  float* held = scratch(threads * share);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t task = 0; task < a.kv_heads * chunks; ++task) {
    const int64_t chunk = task % chunks, first = queries * chunk / chunks;
    attend(queries * (chunk + 1) / chunks - first, a, task / chunks, first, held + omp_get_thread_num() * share, out);
  }
}

}  // namespace selfspec
