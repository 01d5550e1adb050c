// Attention on the vector units: up to four queries of one key head share what they read of it.
#pragma once
#include "queries.h"

namespace selfspec {

constexpr int kQueries = 4;  // as many as have their sums in registers

// G queries.
template <class T, int G> struct AttendVectors {
  const Queries<T>& of;
  float* wide;  // one thread's scratch: the queries as floats, [G, dim]

  void operator()(T* out) const {
    const Attention& a = of.a;
    for (int g = 0; g < G; ++g)
      for (int64_t i = 0; i < a.dim; i += kLanes) store(widen(of.query(g) + i), wide + g * a.dim + i);
    for (int64_t j = 0; j < a.live; j += kLanes)
      if (of.is_seen(j)) score(j);
    float mass[G];
    for (int g = 0; g < G; ++g) mass[g] = of.weigh(g);
    int64_t i = 0;
    for (; i + 4 * kLanes <= a.dim; i += 4 * kLanes) gather<4>(mass, i, out);
    for (; i < a.dim; i += kLanes) gather<1>(mass, i, out);
  }

  // Scores of sixteen keys; behind the last one, that of the last again.
  void score(int64_t j) const {
    const Attention& a = of.a;
    Floats parts[G][kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const T* at = of.keys() + (j + lane < a.live ? j + lane : a.live - 1) * a.dim;
      Floats total[G] = {};
      for (int64_t i = 0; i < a.dim; i += kLanes) {
        const Floats key = widen(at + i);
        for (int g = 0; g < G; ++g) total[g] += load<Floats>(wide + g * a.dim + i) * key;
      }
      for (int g = 0; g < G; ++g) parts[g][lane] = total[g];
    }
    for (int g = 0; g < G; ++g) of.keep(sums(parts[g]), g, j);
  }

  // P vectors of the weighted values from element `i` on. Values of weight zero are not touched: nobody has said that
  // they are numbers.
  template <int P> void gather(const float mass[G], int64_t i, T* out) const {
    const Attention& a = of.a;
    Floats total[G][P] = {};
    for (int64_t j = 0; j < a.live; ++j) {
      Floats value[P];
      for (int part = 0; part < P; ++part) value[part] = widen(of.values() + j * a.dim + i + part * kLanes);
      for (int g = 0; g < G; ++g) {
        const float weight = of.scores[g * a.padded() + j];
        if (weight != 0.0f)
          for (int part = 0; part < P; ++part) total[g][part] += weight * value[part];
      }
    }
    for (int g = 0; g < G; ++g)
      for (int part = 0; part < P; ++part) narrow(total[g][part] / mass[g], of.place(g, out) + i + part * kLanes);
  }
};

// As many queries as there are, four at a time; `held` is scratch, [4, padded + dim].
template <class T, int G = kQueries> void attend_on_vectors(const Queries<T>& of, int64_t first, float* held, T* out) {
  if constexpr (G > 1)
    if (of.count - first < G) return attend_on_vectors<T, G - 1>(of, first, held, out);
  for (; of.count - first >= G; first += G) {
    const Queries<T> some(of.a, of.key_head, of.first + first, G, held);
    AttendVectors<T, G>{some, held + G * of.a.padded()}(out);
  }
  if (first < of.count) attend_on_vectors<T>(of, first, held, out);
}

}  // namespace selfspec
