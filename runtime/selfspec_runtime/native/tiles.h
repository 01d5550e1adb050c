// Products on the matrix units (AMX) of recent Intel processors: up to sixteen rows for the price of one.
//
// The weights are the left operand, sixteen rows of the row-major matrix at a time, so that nothing has to be packed
// beforehand; the hidden states are the right one. Sums run over pairs of inputs in order, whatever the number of rows.
// Float32 inputs take three products, and lose nothing: each is exact.
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

// Has what was written be in memory: compilers are not told that tile instructions read it.
inline void settle_memory() { asm volatile("" ::: "memory"); }

// What the tile registers hold.
class TileShapes {
 public:
  void set(int tile, int64_t rows, int64_t bytes) {
    config_.rows[tile] = uint8_t(rows);
    config_.bytes[tile] = uint16_t(bytes);
  }
  void load() const {
    settle_memory();
    _tile_loadconfig(&config_);
  }

 private:
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config_;
};

// Tiles 0 and 1: sums [16 outputs, m]; 2 and 3: the same of what float32 inputs have beyond their first eight bits;
// 4 and 5: weights [16 outputs, 32]; 6: inputs [16 pairs, m].
inline void configure_tiles(int64_t m) {
  TileShapes shapes;
  for (int tile = 0; tile < 7; ++tile) shapes.set(tile, kTileRows, tile == 4 || tile == 5 ? 2 * kTileWidth : 4 * m);
  shapes.load();
}

// Inputs [m, width] -> [Parts, width / 2, m, 2] bfloat16, as the right operand wants them. A bfloat16 is one part; a
// float32 is exactly the sum of three, each of which holds eight bits of its mantissa. What is infinite has no rest.
template <int Parts> const uint32_t* pair_inputs(const float* x, int64_t m, int64_t width) {
  static thread_local std::vector<uint32_t> held;
  const int64_t share = width / 2 * m;
  if (int64_t(held.size()) < Parts * share) held.resize(Parts * share);
  for (int64_t row = 0; row < m; ++row, x += width)
    for (int64_t k = 0; k < width; k += kLanes) {
      Floats rest = load<Floats>(x + k);
      for (int part = 0; part < Parts; ++part) {
        const Words word = bits<Words>(rest);
        const Halves halves = __builtin_convertvector(word >> 16, Halves);
        uint32_t pairs[kLanes / 2];
        std::memcpy(pairs, &halves, sizeof pairs);
        uint32_t* to = held.data() + part * share + k / 2 * m + row;
        for (int pair = 0; pair < kLanes / 2; ++pair) to[pair * m] = pairs[pair];
        rest -= bits<Floats>(word & 0xffff0000u);
        rest = rest == rest ? rest : Floats{};
      }
    }
  return held.data();
}

// Bfloat16 weights as they lie in memory.
class DenseTiles {
 public:
  DenseTiles(const uint16_t* data, int64_t width) : data_(data), width_(width) {}
  void open(int64_t, int64_t) {}  // the weights of 32 outputs from `output` on, and of 32 inputs from `k` on, are next
  const uint16_t* tile(int64_t output, int64_t row, int64_t k) const { return data_ + (output + row) * width_ + k; }
  int64_t stride() const { return width_; }

 private:
  const uint16_t* data_;
  int64_t width_;
};

// Thirty-two outputs from `output` on for m rows, written to `to` [m, outputs].
template <int Parts, class Weights>
inline void tile_block(Weights& weights, int64_t output, int64_t width, const uint32_t* pairs, int64_t m, float* to,
                       int64_t outputs) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < width; k += kTileWidth) {
    const uint32_t* from = pairs + k / 2 * m;
    weights.open(output, k);
    _tile_loadd(6, from, 4 * m);
    _tile_loadd(4, weights.tile(output, 0, k), 2 * weights.stride());
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights.tile(output, kTileRows, k), 2 * weights.stride());
    _tile_dpbf16ps(1, 5, 6);
    for (int part = 1; part < Parts; ++part) {
      _tile_loadd(6, from + part * (width / 2 * m), 4 * m);
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  float sums[kTileBlock * kTileRows];
  _tile_stored(0, sums, 4 * m);
  _tile_stored(1, sums + kTileRows * m, 4 * m);
  if constexpr (Parts > 1) {
    float rest[kTileBlock * kTileRows];
    _tile_stored(2, rest, 4 * m);
    _tile_stored(3, rest + kTileRows * m, 4 * m);
    for (int64_t i = 0; i < kTileBlock * m; ++i) sums[i] += rest[i];
  }
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < kTileBlock; ++i) to[row * outputs + i] = sums[i * m + row];
}

// The outputs `begin` to `end`, multiples of thirty-two, of all rows: `to` [rows, outputs].
template <int Parts, class Weights>
void tile_product(Weights weights, int64_t outputs, int64_t width, const float* x, int64_t rows, int64_t begin,
                  int64_t end, float* to) {
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const int64_t m = rows - first < kTileRows ? rows - first : kTileRows;
    const uint32_t* pairs = pair_inputs<Parts>(x + first * width, m, width);
    configure_tiles(m);
    for (int64_t output = begin; output < end; output += kTileBlock)
      tile_block<Parts>(weights, output, width, pairs, m, to + first * outputs + output, outputs);
    _tile_release();
  }
}

}  // namespace selfspec
#endif
