// Four-bit weights for the matrix units: unpacked sixteen rows at a time, into the fastest cache, just before their use.
//
// Each weight is rounded to bfloat16, as bitsandbytes does when a bfloat16 layer unpacks it.
// They lie as `weights.h` says: what thirty-two rows take from one block follows one another.
#pragma once
#include "tiles.h"

#if defined(SELFSPEC_TILES) && defined(__AVX512BF16__) && defined(__AVX512BW__)
#define SELFSPEC_FOUR_BIT_TILES 1

namespace selfspec {

// As `DenseTiles`, of blocks of 64 weights.
class FourBitTiles {
 public:
  FourBitTiles(const uint16_t* codes, const float* scales, const float* levels, int64_t width)
      : codes_(codes), scales_(scales), levels_(levels), blocks_(width / kBlock) {}

  // A block ahead of the tiles, which would have to wait for what was only just stored.
  void open(int64_t output, int64_t k) {
    const int64_t block = k / kBlock;
    if (k == 0) unpack(output, 0);
    if (k % kBlock == 0 && block + 1 < blocks_) unpack(output, block + 1);
  }
  const uint16_t* tile(int64_t, int64_t row, int64_t k) const {
    return held_[k / kBlock % 2][k / kTileWidth % 2] + row * kTileWidth;
  }
  int64_t stride() const { return kTileWidth; }

 private:
  static constexpr int64_t kBlock = 64, kAhead = 8192;

  // The low four bits of a half-word choose from a row's own table; the fifth, which is the next code's, between two
  // copies of it.
  void unpack(int64_t output, int64_t block) {
    const __m512 levels = _mm512_loadu_ps(levels_);
    const __m512i first = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(8));
    auto& to = held_[block % 2];
    const float* scale = scales_ + output * blocks_ + block * kTileBlock;
    const uint16_t* from = codes_ + (output * blocks_ + block * kTileBlock) * (kBlock / 4);
    for (int64_t row = 0; row < kTileBlock; ++row, ++scale, from += kBlock / 4) {
      __builtin_prefetch(reinterpret_cast<const char*>(from) + kAhead);
      const __m256i scaled = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(levels, _mm512_set1_ps(*scale)));
      const __m512i table = _mm512_broadcast_i64x4(scaled);
      const __m512i codes = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      const __m512i low = _mm512_srlv_epi16(codes, first), high = _mm512_srlv_epi16(codes, second);
      _mm512_store_si512(to[0] + row * kTileWidth, _mm512_permutexvar_epi16(low, table));
      _mm512_store_si512(to[1] + row * kTileWidth, _mm512_permutexvar_epi16(high, table));
    }
    settle_memory();
  }

  const uint16_t* codes_;
  const float *scales_, *levels_;
  const int64_t blocks_;
  alignas(64) uint16_t held_[2][2][kTileBlock * kTileWidth];
};

}  // namespace selfspec
#endif
