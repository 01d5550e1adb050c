// Attention of bfloat16 heads on the matrix units: all queries of a key head read its keys and values once.
//
// Scores and sums are float32; a weight is two bfloat16, which keep sixteen bits of it. Keys are taken sixteen, values
// thirty-two at a time from the cache's beginning on, so that a query's bits depend on what it sees alone.
#pragma once
#include "queries.h"
#include "tiles.h"

#if defined(SELFSPEC_TILES) && defined(__AVX512BW__)
#define SELFSPEC_ATTENTION_TILES 1

namespace selfspec {

// Tiles 0 and 1: what queries gather [m, 16 of the head]; 2 and 3: their weights [m, 32 keys], and the weights' second
// parts; 4: values [16 pairs of keys, 16 of the head]; 5: keys [16, 32 of the head]; 6: queries [16 pairs of the head, m];
// 7: scores [16 keys, m].
inline void configure_attention_tiles(int64_t m) {
  TileShapes shapes;
  for (int tile = 0; tile < 4; ++tile) shapes.set(tile, m, 2 * kTileWidth);
  for (int tile = 4; tile < 6; ++tile) shapes.set(tile, kTileRows, 2 * kTileWidth);
  for (int tile = 6; tile < 8; ++tile) shapes.set(tile, kTileRows, 4 * m);
  shapes.load();
}

// All of some queries at once.
struct AttendTiles {
  const Queries<uint16_t>& of;
  uint16_t* parts[2];         // one thread's scratch: the weights' parts, [m, whole()]
  const int64_t m = of.count;

  static bool fits(const Attention& a) { return a.dim % kTileWidth == 0 && tiles_allowed(); }
  static int64_t whole(const Attention& a) { return (a.live + kTileWidth - 1) / kTileWidth * kTileWidth; }
  static int64_t floats(const Attention& a, int64_t queries) { return queries * (a.padded() + whole(a)); }

  // False where a value is no finite number, which no zero weight may hide.
  bool operator()(uint16_t* out) const {
    configure_attention_tiles(m);
    score();
    float mass[kTileRows];
    for (int64_t g = 0; g < m; ++g) {
      mass[g] = of.weigh(g);
      split(g);
    }
    bool finite = true;
    for (int64_t i = 0; finite && i < of.a.dim; i += kTileWidth) finite = gather(mass, i, out);
    _tile_release();
    return finite;
  }

  void score() const {
    const Attention& a = of.a;
    static thread_local std::vector<uint32_t> pairs;
    static thread_local std::vector<uint16_t> rest;
    int64_t columns = 1;  // of the products as they are stored: a power of two, so that they can be turned
    while (columns < m) columns *= 2;
    pairs.resize(a.dim / 2 * m);
    for (int64_t g = 0; g < m; ++g) {
      const uint16_t* query = of.query(g);
      uint32_t* to = pairs.data() + g;
      for (int64_t pair = 0; pair < a.dim / 2; ++pair) std::memcpy(to + pair * m, query + 2 * pair, sizeof *to);
    }
    for (int64_t j = 0; j < a.live; j += kTileRows) {
      if (!of.is_seen(j)) continue;
      const uint16_t* keys = of.keys() + j * a.dim;
      if (j + kTileRows > a.live) {  // nobody has said that there is memory behind the last key
        rest.assign(kTileRows * a.dim, 0);
        std::memcpy(rest.data(), keys, (a.live - j) * a.dim * sizeof(uint16_t));
        keys = rest.data();
      }
      settle_memory();
      _tile_zero(7);
      for (int64_t i = 0; i < a.dim; i += kTileWidth) {
        _tile_loadd(5, keys + i, 2 * a.dim);
        _tile_loadd(6, pairs.data() + i / 2 * m, 4 * m);
        _tile_dpbf16ps(7, 5, 6);
      }
      alignas(64) float found[kTileRows * kTileRows];
      _tile_stored(7, found, 4 * columns);
      keep(found, columns, j);
    }
  }

  // Keeps the products [16 keys, columns].
  void keep(const float* products, int64_t columns, int64_t j) const {
    switch (columns) {
      case 1: return keep_turned<1>(products, j);
      case 2: return keep_turned<2>(products, j);
      case 4: return keep_turned<4>(products, j);
      case 8: return keep_turned<8>(products, j);
      default: return keep_turned<16>(products, j);
    }
  }
  template <int C> void keep_turned(const float* products, int64_t j) const {
    Floats rows[C];
    for (int i = 0; i < C; ++i) rows[i] = load<Floats>(products + i * kLanes);
    turn<C>(rows);
    for (int64_t g = 0; g < m; ++g) of.keep(rows[g], g, j);
  }

  // Writes the parts of a query's weights.
  void split(int64_t g) const {
    const int64_t padded = of.a.padded(), all = whole(of.a);
    for (int64_t j = 0; j < all; j += kLanes) {
      Floats rest = j < padded ? load<Floats>(of.scores + g * padded + j) : Floats{};
      for (uint16_t* part : parts) {
        const Words word = bits<Words>(rest);
        const Halves halves = __builtin_convertvector(word >> 16, Halves);
        std::memcpy(part + g * all + j, &halves, sizeof halves);
        rest -= bits<Floats>(word & 0xffff0000u);
      }
    }
    settle_memory();
  }

  // Thirty-two elements from `i` on of what every query gathers.
  bool gather(const float* mass, int64_t i, uint16_t* out) const {
    const Attention& a = of.a;
    const int64_t all = whole(a);
    alignas(64) uint16_t values[2][kTileRows * kTileWidth];
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t j = 0; j < all; j += kTileWidth) {
      if (!of.is_seen(j) && (j + kLanes >= a.live || !of.is_seen(j + kLanes))) continue;
      const int64_t count = a.live - j < kTileWidth ? a.live - j : kTileWidth;
      if (!interleave(of.values() + j * a.dim + i, count, a.dim, values)) return false;
      _tile_loadd(2, parts[0] + j, 2 * all);
      _tile_loadd(3, parts[1] + j, 2 * all);
      _tile_loadd(4, values[0], 2 * kTileWidth);
      _tile_dpbf16ps(0, 2, 4);
      _tile_dpbf16ps(0, 3, 4);
      _tile_loadd(4, values[1], 2 * kTileWidth);
      _tile_dpbf16ps(1, 2, 4);
      _tile_dpbf16ps(1, 3, 4);
    }
    alignas(64) float sums[2][kTileRows * kLanes];
    _tile_stored(0, sums[0], 4 * kLanes);
    _tile_stored(1, sums[1], 4 * kLanes);
    for (int64_t g = 0; g < m; ++g)
      for (int half = 0; half < 2; ++half)
        narrow(load<Floats>(sums[half] + g * kLanes) / mass[g], of.place(g, out) + i + half * kLanes);
    return true;
  }

  // Thirty-two elements of `count` keys' values, `stride` apart, as two right operands: pairs of keys lie together, and
  // behind the last key lies zero. Returns whether all are finite.
  static bool interleave(const uint16_t* from, int64_t count, int64_t stride, uint16_t to[2][kTileRows * kTileWidth]) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80), low = _mm512_loadu_si512(kInterleaved[0]);
    const __m512i high = _mm512_loadu_si512(kInterleaved[1]), zero = _mm512_setzero_si512();
    __mmask32 broken = 0;
    for (int64_t pair = 0; pair < kTileRows; ++pair, from += 2 * stride) {
      const __m512i first = 2 * pair < count ? _mm512_loadu_si512(from) : zero;
      const __m512i second = 2 * pair + 1 < count ? _mm512_loadu_si512(from + stride) : zero;
      for (const __m512i& value : {first, second})
        broken |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(value, exponent), exponent);
      _mm512_store_si512(to[0] + pair * kTileWidth, _mm512_permutex2var_epi16(first, low, second));
      _mm512_store_si512(to[1] + pair * kTileWidth, _mm512_permutex2var_epi16(first, high, second));
    }
    settle_memory();
    return broken == 0;
  }

  static constexpr uint16_t kInterleaved[2][kTileWidth] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
};

// False where queries are left to the vector units.
inline bool attend_on_tiles(const Queries<uint16_t>& of, uint16_t* out) {
  uint16_t* parts = reinterpret_cast<uint16_t*>(of.scores + of.count * of.a.padded());
  return AttendTiles{of, {parts, parts + of.count * AttendTiles::whole(of.a)}}(out);
}

}  // namespace selfspec
#endif
