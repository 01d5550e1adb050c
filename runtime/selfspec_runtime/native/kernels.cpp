// What a decode step does on a CPU, for a few rows of hidden states: a linear layer, the projection into rotated heads,
// attention, a gated MLP, and whole Llama-like layers made of them.
//
// Every output element is summed in an order that depends on nothing but its length. So a row has the same bits
// whether it is computed alone or among sixteen, and a verification is bit-equal to single steps.
// Results are rounded to the model's dtype where the stock modules round.
#include <vector>

#include "attention.h"
#include "scratch.h"
#include "weights.h"

namespace selfspec {

// RMSNorm (Zhang & Sennrich 1910.07467) in place: rounded before the weight and after it.
template <class T> void normalise(float* x, const T* weight, float eps, int64_t width) {
  Floats squares = {};
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) squares += load<Floats>(x + k) * load<Floats>(x + k);
  float total = sum(squares);
  for (; k < width; ++k) total += x[k] * x[k];
  const float scale = 1.0f / std::sqrt(total / float(width) + eps);
  sweep(width, [&](int64_t i, auto lanes) {
    narrow(rounded<T>(rounded<T>(read(x + i, lanes) * scale) * read(weight + i, lanes)), x + i);
  });
}

struct Norm {
  const void* weight;  // [width], or null for none
  float eps;
};

// Hidden states as floats, through a norm if there is one, laid out for a product with `matrix`.
template <class T>
void enter(const T* x, const Norm& norm, int64_t rows, const Matrix& matrix, float* to) {
  static thread_local std::vector<float> held;
  const int64_t width = matrix.width;
  const Placement<T> place(matrix);
  held.resize(width);
  for (int64_t row = 0; row < rows; ++row, x += width, to += width) {
    sweep(width, [&](int64_t i, auto lanes) { narrow(read(x + i, lanes), held.data() + i); });
    if (norm.weight) normalise(held.data(), static_cast<const T*>(norm.weight), norm.eps, width);
    place(held.data(), to);
  }
}

template <class T>
void linear(const T* x, const Norm& norm, const Matrix& matrix, int64_t rows, T* out, int threads) {
  float* input = scratch(rows * (matrix.width + matrix.rows));
  float* product = input + rows * matrix.width;
  enter(x, norm, rows, matrix, input);
#pragma omp parallel num_threads(threads)
  multiply(matrix, input, rows, product, out);
}

// silu(gate) * up, in place of the gate; `inner` values each.
template <class T> void gate(float* both, int64_t inner) {
  const float* up = both + inner;
  sweep(inner, [&](int64_t i, auto lanes) {
    narrow(rounded<T>(rounded<T>(silu(read(both + i, lanes))) * read(up + i, lanes)), both + i);
  });
}

template <class T>
void gated_mlp(const T* x, const Norm& norm, const Matrix& gate_up, const Matrix& down, int64_t rows, T* out,
               int threads) {
  const int64_t inner = down.width;
  float* input = scratch(rows * (gate_up.width + gate_up.rows + inner + down.rows));
  float *both = input + rows * gate_up.width, *hidden = both + rows * gate_up.rows, *product = hidden + rows * inner;
  const Placement<T> place(down);
  enter(x, norm, rows, gate_up, input);
#pragma omp parallel num_threads(threads)
  {
    multiply<T>(gate_up, input, rows, both);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      gate<T>(both + row * gate_up.rows, inner);
      place(both + row * gate_up.rows, hidden + row * inner);
    }
    multiply(down, hidden, rows, product, out);
  }
}

struct Heads {
  Norm norm, query_norm, key_norm;  // of the hidden states, and of every query and every key head
  int64_t queries, keys, dim;
};

// Rotates the two halves of a head (Su et al. 2104.09864, as the Llama family lays it out).
template <class T> void rotate(const float* from, const T* cosine, const T* sine, int64_t dim, T* to) {
  const int64_t half = dim / 2;
  sweep(half, [&](int64_t i, auto lanes) {
    const auto first = read(from + i, lanes), second = read(from + half + i, lanes);
    const auto turned = [&](int64_t at, auto own, auto other) {
      return rounded<T>(own * read(cosine + at, lanes)) + rounded<T>(other * read(sine + at, lanes));
    };
    narrow(turned(i, first, -second), to + i);
    narrow(turned(half + i, second, first), to + half + i);
  });
}

template <class T> struct Slots {  // where keys or values go: [heads, rows, dim] with a stride between heads
  T* data;
  int64_t stride;
};

// Hidden states -> rotated queries [heads, rows, dim] and keys, and values.
template <class T>
void project(const T* x, const Heads& heads, const Matrix& qkv, const T* cosine, const T* sine, int64_t rows, T* q,
             Slots<T> k, Slots<T> v, int threads) {
  const int64_t dim = heads.dim, count = heads.queries + 2 * heads.keys;
  float* input = scratch(rows * (qkv.width + qkv.rows));
  float* states = input + rows * qkv.width;
  enter(x, heads.norm, rows, qkv, input);
#pragma omp parallel num_threads(threads)
  {
    multiply<T>(qkv, input, rows, states);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t task = 0; task < rows * count; ++task) {
      const int64_t row = task / count, head = task % count;
      const int64_t key = head - heads.queries, value = key - heads.keys;
      float* from = states + row * qkv.rows + head * dim;
      if (value >= 0) {
        T* to = v.data + value * v.stride + row * dim;
        sweep(dim, [&](int64_t i, auto lanes) { narrow(read(from + i, lanes), to + i); });
        continue;
      }
      const Norm& norm = key < 0 ? heads.query_norm : heads.key_norm;
      if (norm.weight) normalise(from, static_cast<const T*>(norm.weight), norm.eps, dim);
      T* to = key < 0 ? q + (head * rows + row) * dim : k.data + key * k.stride + row * dim;
      rotate(from, cosine + row * dim, sine + row * dim, dim, to);
    }
  }
}

struct Layer {
  Heads heads;
  Norm mlp_norm;
  const Matrix *qkv, *o;         // null: without its attention
  const Matrix *gate_up, *down;  // null: without its MLP
  float scale;
  int64_t index;  // of its keys and values in the cache
};

struct Pass {  // positions start .. start + rows - 1 of a cache, of which live = start + rows are seen at most
  const void *cosine, *sine;      // [rows, dim]
  void *const *keys, *const *values;  // of every layer: [kv_heads, capacity, dim]
  int64_t k_stride, v_stride;     // elements from one key head to the next
  const uint8_t* mask;            // [rows, live], or null
  int64_t mask_stride, rows, start, live;
};

template <class T> void add(const T* x, const T* y, int64_t count, T* to) {
  sweep(count, [&](int64_t i, auto lanes) { narrow(read(x + i, lanes) + read(y + i, lanes), to + i); });
}

// The attention of a pre-norm layer, added to `x`; its keys and values are written into the cache.
template <class T> void attend_and_add(const T* x, const Layer& layer, const Pass& pass, T* to, int threads) {
  static thread_local std::vector<T> held;
  const int64_t dim = layer.heads.dim, rows = pass.rows, inner = layer.heads.queries * dim;
  const int64_t width = layer.qkv->width, offset = pass.start * dim;
  if (int64_t(held.size()) < rows * (2 * inner + width)) held.resize(rows * (2 * inner + width));
  T *q = held.data(), *attended = q + rows * inner, *change = attended + rows * inner;
  void *keys = pass.keys[layer.index], *values = pass.values[layer.index];
  const Slots<T> k{static_cast<T*>(keys) + offset, pass.k_stride};
  const Slots<T> v{static_cast<T*>(values) + offset, pass.v_stride};
  const T *cosine = static_cast<const T*>(pass.cosine), *sine = static_cast<const T*>(pass.sine);
  project(x, layer.heads, *layer.qkv, cosine, sine, rows, q, k, v, threads);
  const Attention seen{q, keys, values, pass.k_stride, pass.v_stride, pass.mask, pass.mask_stride,
                       layer.heads.queries, layer.heads.keys, rows, pass.live, dim, layer.scale, 0};
  attention(seen, attended, threads);
  linear(attended, Norm{}, *layer.o, rows, change, threads);
  add(x, change, rows * width, to);
}

// Its MLP, added to `x`.
template <class T> void feed_forward(const T* x, const Layer& layer, int64_t rows, T* to, int threads) {
  static thread_local std::vector<T> held;
  const int64_t count = rows * layer.gate_up->width;
  if (int64_t(held.size()) < count) held.resize(count);
  gated_mlp(x, layer.mlp_norm, *layer.gate_up, *layer.down, rows, held.data(), threads);
  add(x, held.data(), count, to);
}

// Some layers one after another.
// `out` may be what is read: every row is read whole before it is written.
template <class T>
void layers(const T* x, const Layer* const* chosen, int64_t count, const Pass& pass, T* out, int threads) {
  for (int64_t i = 0; i < count; ++i) {
    if (chosen[i]->qkv) attend_and_add(x, *chosen[i], pass, out, threads), x = out;
    if (chosen[i]->gate_up) feed_forward(x, *chosen[i], pass.rows, out, threads), x = out;
  }
}

}  // namespace selfspec

#define SELFSPEC_EXPORT(T, suffix)                                                                                     \
  extern "C" void selfspec_linear_##suffix(const T* x, const selfspec::Norm* norm, const selfspec::Matrix* matrix,    \
                                           int64_t rows, T* out, int threads) {                                       \
    selfspec::linear<T>(x, *norm, *matrix, rows, out, threads);                                                        \
  }                                                                                                                    \
  extern "C" void selfspec_gated_mlp_##suffix(const T* x, const selfspec::Norm* norm, const selfspec::Matrix* gate_up, \
                                              const selfspec::Matrix* down, int64_t rows, T* out, int threads) {      \
    selfspec::gated_mlp<T>(x, *norm, *gate_up, *down, rows, out, threads);                                             \
  }                                                                                                                    \
  extern "C" void selfspec_project_##suffix(const T* x, const selfspec::Heads* heads, const selfspec::Matrix* qkv,    \
                                            const T* cosine, const T* sine, int64_t rows, T* q, T* k, T* v,           \
                                            int threads) {                                                            \
    const int64_t stride = rows * heads->dim;                                                                          \
    selfspec::project<T>(x, *heads, *qkv, cosine, sine, rows, q, {k, stride}, {v, stride}, threads);                   \
  }                                                                                                                    \
  extern "C" void selfspec_attention_##suffix(const selfspec::Attention* shape, T* out, int threads) {                 \
    selfspec::attention<T>(*shape, out, threads);                                                                      \
  }                                                                                                                    \
  extern "C" void selfspec_layers_##suffix(const T* x, const selfspec::Layer* const* layers, int64_t count,           \
                                           const selfspec::Pass* pass, T* out, int threads) {                         \
    selfspec::layers<T>(x, layers, count, *pass, out, threads);                                                        \
  }

SELFSPEC_EXPORT(float, float32)
SELFSPEC_EXPORT(uint16_t, bfloat16)
