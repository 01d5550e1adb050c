// Products on the matrix units (AMX) of recent Intel processors: up to sixteen rows for the price of one.
//
// The weights are the left operand, sixteen rows of the plain row-major matrix at a time, so that nothing has to be
// packed; the hidden states are the right one. Sums run over pairs of inputs in order, whatever the number of rows.
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

// Tiles 0 and 1: sums [16 outputs, M]; 2 and 3: weights [16 outputs, 32]; 4: inputs [16 pairs, M].
inline void configure_tiles(int64_t m) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 5; ++tile) {
    config.rows[tile] = kTileRows;
    config.bytes[tile] = uint16_t(tile == 2 || tile == 3 ? 2 * kTileWidth : 4 * m);
  }
  _tile_loadconfig(&config);
}

// Inputs [m, width] -> [width / 2, m, 2] bfloat16, as the right operand wants them.
inline const uint16_t* pair_inputs(const float* x, int64_t m, int64_t width) {
  static thread_local std::vector<uint16_t> held;
  if (int64_t(held.size()) < m * width) held.resize(m * width);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t k = 0; k < width; ++k) held[((k / 2) * m + row) * 2 + k % 2] = uint16_t(bits<uint32_t>(x[row * width + k]) >> 16);
  return held.data();
}

// Thirty-two outputs from `output` on for m rows, written to `to` [m, outputs].
inline void tile_block(const uint16_t* weights, int64_t width, const uint16_t* pairs, int64_t m, float* to,
                       int64_t outputs) {
  const uint16_t* lower = weights + kTileRows * width;
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t k = 0; k < width; k += kTileWidth) {
    _tile_loadd(4, pairs + k * m, 4 * m);
    _tile_loadd(2, weights + k, 2 * width);
    _tile_dpbf16ps(0, 2, 4);
    _tile_loadd(3, lower + k, 2 * width);
    _tile_dpbf16ps(1, 3, 4);
  }
  float sums[kTileBlock * kTileRows];
  _tile_stored(0, sums, 4 * m);
  _tile_stored(1, sums + kTileRows * m, 4 * m);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < kTileBlock; ++i) to[row * outputs + i] = sums[i * m + row];
}

// The outputs `begin` to `end`, multiples of thirty-two, of all rows.
inline void tile_product(const uint16_t* weights, int64_t outputs, int64_t width, const float* x, int64_t rows,
                         int64_t begin, int64_t end, float* to) {
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const int64_t m = rows - first < kTileRows ? rows - first : kTileRows;
    const uint16_t* pairs = pair_inputs(x + first * width, m, width);
    configure_tiles(m);
    for (int64_t output = begin; output < end; output += kTileBlock)
      tile_block(weights + output * width, width, pairs, m, to + first * outputs + output, outputs);
    _tile_release();
  }
}

}  // namespace selfspec
#endif
