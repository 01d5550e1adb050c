// Queries of one key head, and the scores that become their weights.
#pragma once
#include "vectors.h"

namespace selfspec {

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

// Up to sixteen of the queries of a key head, [group, rows], counted from the first of them.
template <class T> struct Queries {
  const Attention& a;
  int64_t key_head, first, count;
  float* scores;  // [count, padded]
  const uint8_t* seen[16];  // for each query the keys that it sees

  Queries(const Attention& of, int64_t key_head, int64_t first, int64_t count, float* scores)
      : a(of), key_head(key_head), first(first), count(count), scores(scores) {
    for (int64_t g = 0; a.mask && g < count; ++g) seen[g] = a.mask + row(g) * a.mask_stride;
  }

  int64_t row(int64_t g) const { return (first + g) % a.rows; }
  int64_t head(int64_t g) const { return key_head * a.group() + (first + g) / a.rows; }
  const T* query(int64_t g) const { return static_cast<const T*>(a.q) + (head(g) * a.rows + row(g)) * a.dim; }
  const T* keys() const { return static_cast<const T*>(a.k) + key_head * a.k_stride; }
  const T* values() const { return static_cast<const T*>(a.v) + key_head * a.v_stride; }
  T* place(int64_t g, T* out) const { return out + (row(g) * a.heads + head(g)) * a.dim; }  // out [rows, heads, dim]

  Bytes seen_bytes(int64_t g, int64_t j) const {
    if (j + kLanes <= a.live) return load<Bytes>(seen[g] + j);
    Bytes bytes = {};
    std::memcpy(&bytes, seen[g] + j, a.live - j);
    return bytes;
  }

  // Whether any query sees any of the sixteen keys from `j` on; the scores of those that none sees are left alone.
  bool is_seen(int64_t j) const {
    if (!a.mask) return true;
    Bytes any = {};
    for (int64_t g = 0; g < count; ++g) any |= seen_bytes(g, j);
    uint64_t halves[2];
    std::memcpy(halves, &any, sizeof halves);
    return halves[0] | halves[1];
  }

  // Keeps a query's products with sixteen keys.
  void keep(Floats products, int64_t g, int64_t j) const {
    float* to = scores + g * a.padded() + j;
    store(products * a.scale, to);
    if (a.softcap > 0)
      for (int lane = 0; lane < kLanes; ++lane) to[lane] = std::tanh(to[lane] / a.softcap) * a.softcap;
  }

  // Scores of sixteen keys, -inf where unseen. Behind a row's own position nothing is seen, so that its bits do not
  // depend on how many keys follow it.
  Floats seen_scores(int64_t g, int64_t j) const {
    Floats found = load<Floats>(scores + g * a.padded() + j);
    if (j + kLanes > a.live)
      for (int64_t lane = a.live - j; lane < kLanes; ++lane) found[lane] = -INFINITY;
    if (!a.mask) return found;
    return __builtin_convertvector(seen_bytes(g, j), Words) != 0 ? found : Floats{} - INFINITY;
  }

  // Turns scores into weights; returns their sum. What is unseen weighs exactly zero.
  float weigh(int64_t g) const {
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
};

}  // namespace selfspec
