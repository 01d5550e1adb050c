// Softmax attention of a few rows to a cache: grouped heads are never repeated, and only what is live is read.
//
// What a query adds up, and in which order, depends on the keys that it sees alone: its bits are the same whatever
// stands beside it, as long as the values there are finite numbers.
#pragma once
#include <omp.h>

#include "attention_tiles.h"
#include "attention_vectors.h"
#include "scratch.h"

namespace selfspec {

// How the queries of a key head are divided among calls, and what one call needs.
template <class T> struct Division {
  int64_t most, floats;
  bool tiled = false;

  Division(const Attention& a, int threads) {
    most = a.heads * a.rows / threads;
    most = most < 1 ? 1 : most > kQueries ? kQueries : most;
    floats = kQueries * (a.padded() + a.dim);
#if defined(SELFSPEC_ATTENTION_TILES)
    tiled = sizeof(T) == 2 && AttendTiles::fits(a);
    if (!tiled) return;
    const int64_t queries = a.group() * a.rows;
    most = queries < kTileRows ? queries : kTileRows;
    if (floats < AttendTiles::floats(a, most)) floats = AttendTiles::floats(a, most);
#endif
  }
};

template <class T> void attend(const Queries<T>& of, bool tiled, float* held, T* out) {
#if defined(SELFSPEC_ATTENTION_TILES)
  if constexpr (sizeof(T) == 2)
    if (tiled && attend_on_tiles(of, out)) return;
#endif
  attend_on_vectors(of, 0, held, out);
}

// Softmax attention; out [rows, heads, dim].
template <class T> void attention(const Attention& a, T* out, int threads) {
  const Division<T> division(a, threads);
  const int64_t queries = a.group() * a.rows, chunks = (queries + division.most - 1) / division.most;
  const int64_t tasks = a.kv_heads * chunks;
  if (threads > tasks) threads = int(tasks);
  float* held = scratch(threads * division.floats);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t chunk = task % chunks, first = queries * chunk / chunks;
    float* own = held + omp_get_thread_num() * division.floats;
    const Queries<T> some(a, task / chunks, first, queries * (chunk + 1) / chunks - first, own);
    attend(some, division.tiled, own, out);
  }
}

}  // namespace selfspec
