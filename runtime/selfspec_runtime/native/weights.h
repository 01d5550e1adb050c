// A weight matrix and its product with a few rows of hidden states; every weight is read from memory once.
#pragma once
#include <omp.h>

#include "four_bit_tiles.h"
#include "tiles.h"
#include "vectors.h"

namespace selfspec {

constexpr int64_t kAhead = 8192;  // bytes fetched ahead, where memory answers slower than a block takes
#if defined(__AVX512F__)
constexpr int kMaxChunk = 6;  // rows of hidden states that one sweep serves: their sums fill the vector registers
#else
constexpr int kMaxChunk = 2;
#endif

struct Matrix {         // as Python describes it
  const void* data;     // dense: [rows, width] of the model's dtype, or halved; NormalFloat4: rows * width / 2 bytes
  const float* scales;  // NormalFloat4: rows * width / 64; null for a dense matrix
  const float* levels;  // NormalFloat4: [16]
  const void* bias;     // [rows] of the model's dtype, or null
  int64_t rows, width;
  int64_t halved;       // of a float32 model: the weights are bfloat16 numbers, and held as such
};

// Thirty-two bfloat16 lie in sixteen words, and a bfloat16 is the upper half of a float: the odd ones are had by a
// mask and the even ones by a shift, one operation for sixteen weights. So inputs lie even ones first.
inline void unpack(const float* from, Floats to[1]) { to[0] = load<Floats>(from); }
inline void unpack(const uint16_t* from, Floats to[2]) {
  const Words pairs = load<Words>(from);
  to[0] = bits<Floats>(pairs << 16);
  to[1] = bits<Floats>(pairs & 0xffff0000u);
}

// A format multiplies R rows of weights with M rows of inputs. The order of a sum depends on the width alone, never
// on M or R. `place` says where an input of a row is to lie for it.
template <class T> struct Dense {
  explicit Dense(const Matrix& m) : data(static_cast<const T*>(m.data)), width(m.width) {}
  const T* data;
  int64_t width;
  static constexpr int kStep = 64 / sizeof(T);  // weights in one vector load

  template <int M, int R> void dot(int64_t row, const float* x, float out[R][M]) const {
    Floats total[R][M] = {};
    const T* at[R];
    for (int r = 0; r < R; ++r) at[r] = data + (row + r) * width;
    const int64_t whole = width / kStep * kStep;
    for (int64_t k = 0; k < whole; k += kStep) step<M, R>(at, k, x + k, total);
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m) {
        out[r][m] = sum(total[r][m]);
        for (int64_t k = whole; k < width; ++k) out[r][m] += widen(at[r][k]) * x[m * width + k];
      }
  }

  template <int M, int R> void step(const T* const at[R], int64_t k, const float* x, Floats total[R][M]) const {
    constexpr int kParts = kStep / kLanes;
    Floats weight[R][kParts];
    for (int r = 0; r < R; ++r) {
      unpack(at[r] + k, weight[r]);
      __builtin_prefetch(reinterpret_cast<const char*>(at[r] + k) + kAhead);
    }
    for (int part = 0; part < kParts; ++part)
      for (int m = 0; m < M; ++m) {
        const Floats input = load<Floats>(x + m * width + part * kLanes);
        for (int r = 0; r < R; ++r) total[r][m] += weight[r][part] * input;
      }
  }
};

// Four-bit NormalFloat (Dettmers et al. 2305.14314): 64 weights of a row share one scale. They lie in sixteen
// half-words: half-word l holds weights l, l + 16, l + 32 and l + 48, from its lowest four bits up. The blocks of 32
// rows lie together, the first of each row before the second of each; the rest of the rows is a group of its own.
struct NormalFloat4 {
  explicit NormalFloat4(const Matrix& m)
      : data(static_cast<const uint16_t*>(m.data)), scales(m.scales), levels(m.levels), rows(m.rows), width(m.width) {}
  const uint16_t* data;
  const float *scales, *levels;
  int64_t rows, width;
  static constexpr int64_t kGroup = 32;

  template <int M, int R> void dot(int64_t row, const float* x, float out[R][M]) const {
    const Floats level = load<Floats>(levels);
    const int64_t blocks = width / 64, first = row / kGroup * kGroup;
    const int64_t height = rows - first < kGroup ? rows - first : kGroup;
    Floats total[R][M] = {};
    for (int64_t block = 0, at = first * blocks + row - first; block < blocks; ++block, at += height)
      for (int r = 0; r < R; ++r) {
        const uint16_t* from = data + (at + r) * kLanes;
        __builtin_prefetch(reinterpret_cast<const char*>(from) + kAhead);
        const Words codes = __builtin_convertvector(load<Halves>(from), Words);
        const Floats weight[4] = {look_up(level, codes), look_up(level, codes >> 4), look_up(level, codes >> 8),
                                  look_up(level, codes >> 12)};
        const float scale = scales[at + r];
        for (int m = 0; m < M; ++m) {
          const float* input = x + m * width + block * 64;
          Floats part = weight[0] * load<Floats>(input);
          for (int quarter = 1; quarter < 4; ++quarter) part += weight[quarter] * load<Floats>(input + quarter * kLanes);
          total[r][m] += part * scale;
        }
      }
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m) out[r][m] = sum(total[r][m]);
  }
};

// R outputs of every row, written to `to` [rows, outputs].
template <int R, class Weight>
inline void product_block(const Weight& weight, int64_t output, const float* x, int64_t rows, float* to,
                          int64_t outputs) {
  const int64_t sweeps = (rows + kMaxChunk - 1) / kMaxChunk;
  for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
    const int64_t first = rows * sweep / sweeps, count = rows * (sweep + 1) / sweeps - first;
#define SELFSPEC_ROWS(M)                                                                  \
  case M: {                                                                               \
    float out[R][M];                                                                      \
    weight.template dot<M, R>(output, x + first * weight.width, out);                     \
    for (int m = 0; m < M; ++m)                                                           \
      for (int r = 0; r < R; ++r) to[(first + m) * outputs + output + r] = out[r][m];     \
  } break;
    switch (count) {
      SELFSPEC_ROWS(1) SELFSPEC_ROWS(2) SELFSPEC_ROWS(3) SELFSPEC_ROWS(4) SELFSPEC_ROWS(5) SELFSPEC_ROWS(6)
    }
#undef SELFSPEC_ROWS
  }
}

template <class Weight>
void product(const Weight& weight, int64_t outputs, const float* x, int64_t rows, int64_t begin, int64_t end,
             float* to) {
  constexpr int kBlock = 4;
  int64_t output = begin;
  for (; output + kBlock <= end; output += kBlock) product_block<kBlock>(weight, output, x, rows, to, outputs);
  for (; output < end; ++output) product_block<1>(weight, output, x, rows, to, outputs);
}

// Whether a dense matrix holds bfloat16.
template <class T> inline bool has_halves(const Matrix& matrix) {
  return !matrix.scales && (sizeof(T) == 2 || matrix.halved);
}

// Whether a matrix goes through the matrix units; its inputs then lie in order.
template <class T> inline bool tiled(const Matrix& matrix) {
#if defined(SELFSPEC_FOUR_BIT_TILES)
  if (matrix.scales) return sizeof(T) == 2 && matrix.rows % kTileBlock == 0 && tiles_allowed();
#endif
#if defined(SELFSPEC_TILES)
  return has_halves<T>(matrix) && matrix.width % kTileWidth == 0 && matrix.rows % kTileBlock == 0 && tiles_allowed();
#else
  return false;
#endif
}

// Copies a row of inputs to where `multiply` wants them: in order, or the even ones of every thirty-two first.
template <class T> struct Placement {
  explicit Placement(const Matrix& matrix)
      : width(matrix.width), paired(has_halves<T>(matrix) && !tiled<T>(matrix) ? width / 32 * 32 : 0) {}
  int64_t width, paired;

  void operator()(const float* row, float* to) const {
    for (int64_t i = 0; i < paired; i += 32)
      for (int64_t j = 0; j < kLanes; ++j) {
        to[i + j] = row[i + 2 * j];
        to[i + j + kLanes] = row[i + 2 * j + 1];
      }
    std::memcpy(to + paired, row + paired, (width - paired) * sizeof(float));
  }
};

struct Share {  // the contiguous outputs of one thread, in whole blocks
  int64_t begin, end;
  explicit Share(int64_t outputs) {
    constexpr int64_t kBlock = 32;
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t blocks = (outputs + kBlock - 1) / kBlock;
    begin = blocks * thread / threads * kBlock;
    end = blocks * (thread + 1) / threads * kBlock;
    if (end > outputs) end = outputs;
  }
};

// A share of a product on the matrix units.
template <class T>
void tile_product(const Matrix& matrix, const float* x, int64_t rows, const Share& share, float* to) {
#if defined(SELFSPEC_TILES)
  constexpr int kParts = sizeof(T) == 2 ? 1 : 3;
  const uint16_t* data = static_cast<const uint16_t*>(matrix.data);
  const auto run = [&](auto weights) {
    tile_product<kParts>(weights, matrix.rows, matrix.width, x, rows, share.begin, share.end, to);
  };
#if defined(SELFSPEC_FOUR_BIT_TILES)
  if (matrix.scales) return run(FourBitTiles(data, matrix.scales, matrix.levels, matrix.width));
#endif
  run(DenseTiles(data, matrix.width));
#endif
}

// The product of `x` [rows, width] with a matrix, and its bias, rounded to T: `to` [rows, outputs]. Called by all
// threads of a parallel region; each computes its share, which is returned.
template <class T> Share multiply(const Matrix& matrix, const float* x, int64_t rows, float* to) {
  const Share share(matrix.rows);
  if (tiled<T>(matrix)) {
    tile_product<T>(matrix, x, rows, share, to);
  } else if (matrix.scales) {
    product(NormalFloat4(matrix), matrix.rows, x, rows, share.begin, share.end, to);
  } else if (has_halves<T>(matrix)) {
    product(Dense<uint16_t>(matrix), matrix.rows, x, rows, share.begin, share.end, to);
  } else {
    product(Dense<T>(matrix), matrix.rows, x, rows, share.begin, share.end, to);
  }
  const T* bias = static_cast<const T*>(matrix.bias);
  for (int64_t row = 0; row < rows; ++row) {
    float* at = to + row * matrix.rows + share.begin;
    sweep(share.end - share.begin, [&](int64_t i, auto lanes) {
      auto value = read(at + i, lanes);
      if (bias) value += read(bias + share.begin + i, lanes);
      narrow(rounded<T>(value), at + i);
    });
  }
  return share;
}

// As `multiply`, into the model's dtype.
template <class T> void multiply(const Matrix& matrix, const float* x, int64_t rows, float* floats, T* to) {
  const Share share = multiply<T>(matrix, x, rows, floats);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * matrix.rows + share.begin;
    sweep(share.end - share.begin,
          [&](int64_t i, auto lanes) { narrow(read(floats + first + i, lanes), to + first + i); });
  }
}

}  // namespace selfspec
