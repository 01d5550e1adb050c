// Products on the matrix units (AMX) of recent Intel processors: up to sixteen rows for the price of one.
//
// The weights are the left operand, sixteen rows of the plain row-major matrix at a time, so that nothing has to be
// packed; the hidden states are the right one. Sums run over pairs of inputs in order, whatever the number of rows.
// Float32 inputs take three columns each, and lose nothing: their products with bfloat16 weights are exact.
#pragma once
#if defined(__AMX_BF16__) && defined(__linux__)
#define SELFSPEC_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "vectors.h"

namespace selfspec {

constexpr int64_t kTileRows = 16, kTileWidth = 32, kTileBlock = 2 * kTileRows;

// Linux hands the tile registers out on request (arch_prctl ARCH_REQ_XCOMP_PERM for XTILEDATA).
inline bool tiles_allowed() {
  static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return allowed;
}

// How rows share the columns of a tile: `Parts` columns each, in as few sweeps over a block of weights as there can
// be, all of one width, so that the tiles keep their shape.
template <int Parts> struct Sweeps {
  explicit Sweeps(int64_t rows)
      : count((rows + kMost - 1) / kMost), rows((rows + count - 1) / count), columns(this->rows * Parts) {}
  static constexpr int64_t kMost = kTileRows / Parts;
  int64_t count, rows, columns;
};

// Tiles 0 to 3: sums [16 outputs, columns]; 4 and 5: weights [16 outputs, 32]; 6: inputs [16 pairs, columns].
inline void configure_tiles(int64_t columns) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 7; ++tile) {
    config.rows[tile] = kTileRows;
    config.bytes[tile] = uint16_t(tile == 4 || tile == 5 ? 2 * kTileWidth : 4 * columns);
  }
  _tile_loadconfig(&config);
}

// One row of inputs [width] -> [width / 2, Parts, 2] bfloat16, `columns` pairs apart. A float32 is exactly the sum of
// three bfloat16, each of which holds eight bits of its mantissa; a bfloat16 is one. What is infinite has no rest.
template <int Parts> inline void pair_inputs(const float* x, int64_t width, uint32_t* to, int64_t columns) {
  for (int64_t k = 0; k < width; k += kLanes, to += kLanes / 2 * columns) {
    Floats rest = load<Floats>(x + k);
    for (int part = 0; part < Parts; ++part) {
      const Words word = bits<Words>(rest);
      uint32_t pairs[kLanes / 2];
      const Halves halves = __builtin_convertvector(word >> 16, Halves);
      std::memcpy(pairs, &halves, sizeof pairs);
      for (int pair = 0; pair < kLanes / 2; ++pair) to[pair * columns + part] = pairs[pair];
      rest -= bits<Floats>(word & 0xffff0000u);
      rest = rest == rest ? rest : Floats{};
    }
  }
}

// Inputs [rows, width] -> [sweeps, width / 2, columns, 2] bfloat16, as the right operand wants them.
template <int Parts> const uint32_t* pair_inputs(const float* x, int64_t rows, int64_t width) {
  static thread_local std::vector<uint32_t> held;
  const Sweeps<Parts> sweeps(rows);
  const int64_t share = width / 2 * sweeps.columns;
  held.assign(sweeps.count * share, 0);
  for (int64_t row = 0; row < rows; ++row) {
    uint32_t* to = held.data() + row / sweeps.rows * share + row % sweeps.rows * Parts;
    pair_inputs<Parts>(x + row * width, width, to, sweeps.columns);
  }
  return held.data();
}

// Thirty-two outputs for the columns of one sweep: sums [32 outputs, columns]. Even and odd steps are summed apart,
// which halves the length of a sum, and lets four products run at once.
inline void tile_block(const uint16_t* weights, int64_t width, const uint32_t* pairs, int64_t columns, float* sums) {
  const uint16_t* lower = weights + kTileRows * width;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < width; k += 2 * kTileWidth) {
    _tile_loadd(6, pairs + k / 2 * columns, 4 * columns);
    _tile_loadd(4, weights + k, 2 * width);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower + k, 2 * width);
    _tile_dpbf16ps(1, 5, 6);
    const int64_t odd = k + kTileWidth;
    if (odd == width) break;
    _tile_loadd(6, pairs + odd / 2 * columns, 4 * columns);
    _tile_loadd(4, weights + odd, 2 * width);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(5, lower + odd, 2 * width);
    _tile_dpbf16ps(3, 5, 6);
  }
  float odd[kTileBlock * kTileRows];
  _tile_stored(0, sums, 4 * columns);
  _tile_stored(1, sums + kTileRows * columns, 4 * columns);
  _tile_stored(2, odd, 4 * columns);
  _tile_stored(3, odd + kTileRows * columns, 4 * columns);
  for (int64_t i = 0; i < kTileBlock * columns; ++i) sums[i] += odd[i];
}

// Adds up a row's parts, the smallest first: sums [32 outputs, columns], of which the row has `Parts` from `first` on.
template <int Parts> inline void collect(const float* sums, int64_t columns, int64_t first, float* to) {
  for (int64_t i = 0; i < kTileBlock; ++i) {
    const float* parts = sums + i * columns + first;
    to[i] = parts[Parts - 1];
    for (int part = Parts - 2; part >= 0; --part) to[i] += parts[part];
  }
}

// The outputs `begin` to `end`, multiples of thirty-two, of all rows: `to` [rows, outputs].
template <int Parts>
void tile_product(const uint16_t* weights, int64_t outputs, int64_t width, const float* x, int64_t rows, int64_t begin,
                  int64_t end, float* to) {
  const Sweeps<Parts> sweeps(rows);
  const int64_t columns = sweeps.columns;
  const uint32_t* pairs = pair_inputs<Parts>(x, rows, width);
  float sums[kTileBlock * kTileRows];
  configure_tiles(columns);
  for (int64_t output = begin; output < end; output += kTileBlock)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t sweep = row / sweeps.rows, place = row % sweeps.rows;
      if (place == 0) tile_block(weights + output * width, width, pairs + sweep * width / 2 * columns, columns, sums);
      collect<Parts>(sums, columns, place * Parts, to + row * outputs + output);
    }
  _tile_release();
}

}  // namespace selfspec
#endif
