// Products and attention in bfloat16 on vectors of float32, for processors without matrix tiles: numbers are widened as
// they are read, sums are float32. Where the processor multiplies pairs of bfloat16 (AVX-512 BF16), products and scores
// do that instead. With the compiler's vector types, whose width is the processor's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "step.h"

namespace {

#ifdef __AVX512F__
constexpr int64_t kLanes = 16;
constexpr int kBlockRows = 12;  // rows that meet two vectors of columns together: their sums fill most registers
#else
constexpr int64_t kLanes = 8;
constexpr int kBlockRows = 6;
#endif
constexpr int64_t kAhead = 2048;     // bytes of a weight that are fetched ahead while few rows meet it
constexpr int64_t kChunkRows = 96;   // rows that meet all weights before others do: they stay in the second cache

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Integers = int32_t __attribute__((vector_size(4 * kLanes)));
using Halves = Half __attribute__((vector_size(2 * kLanes)));

template <typename Vector, typename Element>
inline Vector load(const Element* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <typename Vector, typename Element>
inline void store(Element* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

inline Floats splat(float value) { return value - Floats{}; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline Floats widen_lanes(const Half* from) {
  return reinterpret_cast<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

// To the nearest bfloat16, to the even one of two.
inline Halves narrow(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, nothing = (bits >> 16) | 0x40;  // stays not a number
  return __builtin_convertvector(x == x ? nearest : nothing, Halves);
}

// 0 below e^-87: results that are not normal numbers cost the processor a hundred cycles each.
inline Floats exp_lanes(Floats x) {
  const Floats least = splat(-87.0f), whole = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to whole numbers
  const Floats y = x < least ? least : x;                           // what is not a number stays so
  const Floats n = (y * 1.44269504f + whole) - whole;
  Floats f = y - n * 0.693359375f;
  f = f + n * 2.12194440e-4f;
  Floats p = splat(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * f + c;
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  return x < least ? Floats{} : p * reinterpret_cast<Floats>(power);
}

// Lanes whose bit `Width` is 0: x's plus those `Width` further on; the others: y's, likewise. The compiler knows the order of
// lanes; one that is built in memory, by a loop, costs some 20 cycles.
template <int64_t Width, size_t... Lane>
inline Floats fold(Floats x, Floats y, std::index_sequence<Lane...>) {
  const Integers first{static_cast<int32_t>(Lane & Width ? kLanes + (Lane ^ Width) : Lane)...};
  const Integers second{static_cast<int32_t>(Lane & Width ? kLanes + Lane : (Lane ^ Width))...};
  return __builtin_shuffle(x, y, first) + __builtin_shuffle(x, y, second);
}

// The sum of each of four vectors, in the same order whichever of the four it is.
using Four = float __attribute__((vector_size(16)));
inline Four sums_of(Floats a, Floats b, Floats c, Floats d) {
  constexpr int64_t half = kLanes / 2, quarter = kLanes / 4;
  const std::make_index_sequence<kLanes> lanes;
  Floats x = fold<quarter>(fold<half>(a, b, lanes), fold<half>(c, d, lanes), lanes);
  if constexpr (kLanes == 16) x = fold<2>(x, x, lanes);
  x = fold<1>(x, x, lanes);
  return Four{x[0], x[half], x[quarter], x[half + quarter]};
}

bool allow() { return true; }

// --- sums of products of bfloat16, and what their second factors are kept as

#ifdef __AVX512BF16__
using Factor = Half;

inline void put_factors(const Half* from, int64_t count, Factor* to) { std::memcpy(to, from, count * sizeof(Half)); }
inline const Factor* as_factors(const Half* from, int64_t, std::vector<Factor>&) { return from; }

// Adds the products of 16 pairs with 16 others.
inline Floats add_pairs(Floats sum, Words x, Words y) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
}

inline Floats add_products(Floats sum, const Half* x, const Factor* y) {
  return add_pairs(sum, load<Words>(x), load<Words>(y));
}

template <int Rows, int Vectors>
inline void add_outer(Floats (&sums)[Rows][Vectors], const Words (&pairs)[Vectors], const Factor* x, int64_t depth) {
  for (int row = 0; row < Rows; ++row) {
    const Words at = load<uint32_t>(x + row * depth) - Words{};
    for (int v = 0; v < Vectors; ++v) sums[row][v] = add_pairs(sums[row][v], pairs[v], at);
  }
}
#else
using Factor = float;

inline void put_factors(const Half* from, int64_t count, Factor* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, widen_lanes(from + i));
}

inline const Factor* as_factors(const Half* from, int64_t count, std::vector<Factor>& wide) {
  wide.resize(count);
  put_factors(from, count, wide.data());
  return wide.data();
}

inline Floats add_products(Floats sum, const Half* x, const Factor* y) {
  return sum + widen_lanes(x) * load<Floats>(y);
}

template <int Rows, int Vectors>
inline void add_outer(Floats (&sums)[Rows][Vectors], const Words (&pairs)[Vectors], const Factor* x, int64_t depth) {
  for (int64_t odd = 0; odd < 2; ++odd) {  // one after the other, so that no sum must leave its register
    Floats weights[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      weights[v] = reinterpret_cast<Floats>(odd ? pairs[v] & 0xffff0000 : pairs[v] << 16);
    }
    for (int row = 0; row < Rows; ++row) {
      const float at = x[row * depth + odd];
      for (int v = 0; v < Vectors; ++v) sums[row][v] += weights[v] * at;
    }
  }
}
#endif
constexpr int64_t kFactors = sizeof(Floats) / sizeof(Factor);  // elements that add_products takes

// --- products

// What is asked for from memory while a block is multiplied, two lines of 64 bytes: `pace` bytes further on at each pair of
// its depth.
struct Fetch {
  const char* from;
  int64_t pace;
};

// y of `Rows` rows for `Vectors` vectors of columns, which lie in one half of a packed block, are all of it, or of several
// behind each other. Sums grow in the order of the depth, whatever the rows are, so that a row's result does not depend on
// the others.
template <int Rows, int Vectors>
void product_rows(const Factor* x, const Half* block, const Half* bias, Half* y, int64_t depth, int64_t outputs,
                  Fetch fetch) {
  constexpr int64_t kHalf = kTile / kLanes, kBlock = kColumns / kLanes;  // vectors
  Floats sums[Rows][Vectors] = {};
  for (int64_t k = 0; k < depth; k += kDepth, block += kDepth * kColumns) {
    for (int64_t pair = 0; pair < kTile; ++pair) {
      const Half* line = block + pair * kDepth;
      for (int64_t v = 0; v < Vectors; v += kBlock) {
        const char* next = fetch.from + v / kBlock * depth * kColumns * sizeof(Half);
        __builtin_prefetch(next);
        __builtin_prefetch(next + 64);
      }
      fetch.from += fetch.pace;
      Words both[Vectors];
      for (int64_t v = 0; v < Vectors; ++v) {
        both[v] = load<Words>(line + v / kBlock * depth * kColumns + v % kBlock / kHalf * kTile * kDepth +
                              v % kHalf * 2 * kLanes);
      }
      add_outer(sums, both, x + k + 2 * pair, depth);
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int v = 0; v < Vectors; ++v) {
      const Floats offset = bias ? widen_lanes(bias + v * kLanes) : Floats{};
      store(y + row * outputs + v * kLanes, narrow(sums[row][v] + offset));
    }
  }
}

// Some columns for up to `Rows` rows.
template <int Vectors, int Rows = kBlockRows>
void product_of(int64_t rows, const Factor* x, const Half* block, const Half* bias, Half* y, int64_t depth,
                int64_t outputs, Fetch fetch) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return product_rows<Rows, Vectors>(x, block, bias, y, depth, outputs, fetch);
    product_of<Vectors, Rows - 1>(rows, x, block, bias, y, depth, outputs, fetch);
  }
}

// The packed blocks first..end of a product.
void multiply(const Product& product, int64_t first, int64_t end) {
  constexpr int64_t kPairBytes = 2 * kColumns * sizeof(Half);
  constexpr int kAll = kColumns / kLanes, kGroup = 2, kFew = kBlockRows * kGroup / kAll, kVeryFew = kFew / 3;
  const auto [x, w, bias, y, count, depth, outputs] = product;
  static thread_local std::vector<Factor> wide;
  for (int64_t start = 0; start < count; start += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, count - start);
    const Factor* from = as_factors(x + start * depth, rows * depth, wide);
    for (int64_t block = first; block < end; ++block) {
      const Half* weight = w + block * kColumns * depth;
      Half* to = y + start * outputs + block * kColumns;
      const Half* offset = bias ? bias + block * kColumns : nullptr;
      if (rows <= kFew) {
        const Fetch fetch{reinterpret_cast<const char*>(weight) + kAhead, kPairBytes};
        if (rows <= kVeryFew && block + 1 < end) {  // one row's two sums would wait for each other
          product_of<2 * kAll, kVeryFew>(rows, from, weight, offset, to, depth, outputs, fetch);
          ++block;
          continue;
        }
        product_of<kAll, kFew>(rows, from, weight, offset, to, depth, outputs, fetch);
        continue;
      }
      // The next block comes in little by little, while all rows meet this one.
      const int64_t groups = (rows + kBlockRows - 1) / kBlockRows, passes = groups * (kAll / kGroup);
      Fetch fetch{reinterpret_cast<const char*>(weight + kColumns * depth), kPairBytes / passes};
      for (int64_t part = 0; part < kAll / kGroup; ++part) {
        const int64_t column = part * kGroup * kLanes;
        for (int64_t group = 0; group < groups; ++group, fetch.from += depth / 2 * fetch.pace) {
          const int64_t row = rows * group / groups, height = rows * (group + 1) / groups - row;
          product_of<kGroup>(height, from + row * depth, weight + part * kTile * kDepth, offset ? offset + column : nullptr,
                             to + row * outputs + column, depth, outputs, fetch);
        }
      }
    }
  }
}

// --- attention

// What is known of a row of a tile of kLanes is a lane of a vector. Scores of all keys are kept, so that weights are
// exp(score - largest) whatever blocks keys lie in, and sums grow in the order of the keys, where those that a row does
// not see add 0: a row's result does not depend on the other rows, nor on where in a tree its node lies.
struct Scratch {
  alignas(64) Factor query[kRows * kMaxDim];  // [row][dim]
  alignas(64) float sums[kLanes * kMaxDim];  // of one tile
  std::vector<float> scores;                 // of one tile [key][lane], then their weights
};

// Calls run(std::integral_constant<int, n>, first row) for groups of up to four of `rows` rows.
template <typename Run>
void in_groups(int64_t rows, Run run) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) run(std::integral_constant<int, 4>{}, row);
  switch (rows - row) {
    case 3: return run(std::integral_constant<int, 3>{}, row);
    case 2: return run(std::integral_constant<int, 2>{}, row);
    case 1: return run(std::integral_constant<int, 1>{}, row);
  }
}

// Scores [key][lane] of `Rows` rows; those of the lanes behind them up to the fourth become 0.
template <int Rows>
void score(int64_t dim, int64_t count, const Factor* query, const Half* keys, int64_t stride, float* scores) {
  for (int64_t key = 0; key < count; ++key, keys += stride, scores += kLanes) {
    Floats sums[4] = {};
    for (int64_t d = 0; d < dim; d += kFactors) {
      for (int row = 0; row < Rows; ++row) sums[row] = add_products(sums[row], keys + d, query + row * dim + d);
    }
    store(scores, sums_of(sums[0], sums[1], sums[2], sums[3]));
  }
}

// Adds the weighted values of a block of keys to the sums of `Rows` rows.
template <int Rows>
void gather(int64_t dim, int64_t count, const float* weights, const Half* values, int64_t stride, float* sums) {
  constexpr int kVectors = 2;
  for (int64_t d = 0; d < dim; d += kVectors * kLanes) {
    Floats acc[Rows][kVectors];
    for (int row = 0; row < Rows; ++row) {
      for (int v = 0; v < kVectors; ++v) acc[row][v] = load<Floats>(sums + row * dim + d + v * kLanes);
    }
    for (int64_t key = 0; key < count; ++key) {
      Floats value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = widen_lanes(values + key * stride + d + v * kLanes);
      for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < kVectors; ++v) acc[row][v] += value[v] * weights[key * kLanes + row];
      }
    }
    for (int row = 0; row < Rows; ++row) {
      for (int v = 0; v < kVectors; ++v) store(sums + row * dim + d + v * kLanes, acc[row][v]);
    }
  }
}

// Rows first_row..first_row + height of a piece.
void attend_tile(const Step& step, const Work& work, int64_t first_row, int64_t height, const Factor* query, Scratch& w) {
  const Sequence& s = step.sequences[work.sequence];
  const int64_t last_node = (first_row + height - 1) / step.group, deepest = s.cached + s.nodes - 1;
  const int64_t end = s.cached + (s.tree < 0 ? last_node + 1 : s.nodes);
  const int64_t begin = step.window ? std::max<int64_t>(0, s.cached - step.window + 1) : 0;
  const Floats lowest = splat(-std::numeric_limits<float>::infinity());
  Floats top = lowest;
  w.scores.resize((end - begin) * kLanes);
  for (int64_t first = begin; first < end; first += kKeys) {
    const int64_t count = std::min(kKeys, end - first);
    float* scores = w.scores.data() + (first - begin) * kLanes;
    in_groups(height, [&](auto rows, int64_t row) {
      score<rows()>(step.dim, count, query + row * step.dim, step.keys.at(work.kv_head, s.start + first),
                    step.keys.token, scores + row);
    });
    const bool masked = first + count > s.cached || (step.window && first <= deepest - step.window);
    Words seen[2] = {};
    int64_t node = -1;
    uint64_t bits = 0;
    for (int64_t lane = 0; masked && lane < height; ++lane) {
      const int64_t mine = (first_row + lane) / step.group;
      if (mine != node) bits = visible_keys(step, s, node = mine, first, count);
      seen[0][lane] = static_cast<uint32_t>(bits);
      seen[1][lane] = static_cast<uint32_t>(bits >> 32);
    }
    for (int64_t key = 0; key < count; ++key) {
      Floats x = load<Floats>(scores + key * kLanes) * step.scale;
      if (masked) x = (seen[key / 32] & (1u << (key % 32))) != 0 ? x : lowest;
      store(scores + key * kLanes, x);
      top = larger(top, x);
    }
  }
  Floats total = {};
  for (int64_t key = 0; key < end - begin; ++key) {
    float* at = w.scores.data() + key * kLanes;
    const Floats weight = exp_lanes(load<Floats>(at) - top);
    store(at, weight);
    total += weight;
  }
  std::memset(w.sums, 0, height * step.value_dim * sizeof(float));
  for (int64_t first = begin; first < end; first += kKeys) {
    in_groups(height, [&](auto rows, int64_t row) {
      gather<rows()>(step.value_dim, std::min(kKeys, end - first), w.scores.data() + (first - begin) * kLanes + row,
                     step.values.at(work.kv_head, s.start + first), step.values.token, w.sums + row * step.value_dim);
    });
  }
  for (int64_t row = 0; row < height; ++row) {
    const int64_t at = first_row + row, head = work.kv_head * step.group + at % step.group;
    Half* out = step.out + ((s.row + at / step.group) * step.heads + head) * step.value_dim;
    const float share = 1.0f / total[row], *sums = w.sums + row * step.value_dim;
    for (int64_t d = 0; d < step.value_dim; d += kLanes) store(out + d, narrow(load<Floats>(sums + d) * share));
  }
}

// One piece: up to 64 (node, head) rows that share a key-value head, over all keys of their sequence.
void attend(const Step& step, const Work& work, Scratch& w) {
  const Sequence& s = step.sequences[work.sequence];
  for (int64_t row = 0; row < work.rows; ++row) {
    const int64_t at = work.first_row + row, head = work.kv_head * step.group + at % step.group;
    put_factors(step.query.at(head, s.row + at / step.group), step.dim, w.query + row * step.dim);
  }
  for (int64_t row = 0; row < work.rows; row += kLanes) {
    attend_tile(step, work, work.first_row + row, std::min(kLanes, work.rows - row), w.query + row * step.dim, w);
  }
}

void begin_attention() {}
void end_attention() {}

}  // namespace
