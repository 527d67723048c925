// Products and attention in bfloat16 on the processor's matrix tiles (AMX).
//
// A tile holds 16 rows of 64 bytes. tdpbf16ps multiplies 16 x 32 by 32 x 16 elements, where the second operand holds
// pairs of consecutive rows side by side: element (k, n) at row k / 2, column 2 n + k % 2.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "step.h"

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kAhead = 6144; // bytes of a weight that are fetched ahead by rows of one block: three steps

using Floats = __m512;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t count) {
    bytes[tile] = count ? 64 : 0;
    rows[tile] = static_cast<uint8_t>(count);
  }

  // GCC's intrinsic says that it reads the first eight bytes only; the others must have been written too.
  void load() const {
    asm volatile("" : : "m"(*this));
    _tile_loadconfig(this);
  }
};

__m512 widen_lanes(const Half* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

Floats splat(float value) { return _mm512_set1_ps(value); }
Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }

// Ask the kernel for the right to use tiles; once a process.
bool allow() {
  constexpr int request_permission = 0x1023, tile_data = 18;
  static const bool allowed = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return allowed;
}

// --- products

// Rows in blocks of at most 32: tiles 0-3 sums, 4-5 rows, 6-7 weights.
void configure_product(int64_t rows) {
  TileConfig config;
  const int64_t first = std::min(rows, kTile), second = rows - first;
  for (int tile : {0, 1, 4}) config.set(tile, first);
  for (int tile : {2, 3, 5}) config.set(tile, second);
  for (int tile : {6, 7}) config.set(tile, kTile);
  config.load();
}

// What of a weight to ask the memory for during a block of rows: at each step these lines of 64 bytes.
struct Fetch {
  const char* from;
  int64_t lines;
};

// Block `pass` of `passes` blocks of rows meets a packed block. A single one asks for this block's own next steps. More
// ask for the next block, each for its share, so that the memory is not idle while sums are made; the first block that a
// thread meets was asked for by nobody.
Fetch fetch_of(int64_t pass, int64_t passes, bool first, bool last, const Half* block, int64_t depth) {
  constexpr int64_t lines = kStep / 64;
  const char* own = reinterpret_cast<const char*>(block);
  if (pass == 0 && (first || passes == 1)) return {own + kAhead, lines};
  if (last || passes == 1) return {own, 0};
  const int64_t sharing = passes - first, share = (lines + sharing - 1) / sharing;
  const int64_t start = std::min((pass - first) * share, lines);
  return {own + depth * kColumns * sizeof(Half) + 64 * start, std::min(share, lines - start)};
}

// y[row, 0..32] of up to 32 rows, for one packed block of 32 output features.
void product_block(const Half* x, const Half* block, const Half* bias, Half* y, int64_t rows, int64_t depth,
                   int64_t outputs, Fetch fetch) {
  alignas(64) float sums[kColumns][kColumns];
  const bool both = rows > kTile;
  const int64_t stride = depth * sizeof(Half);
  _tile_zero(0);
  _tile_zero(1);
  if (both) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kDepth) {
    const Half* tile = block + k * kColumns;
    for (int64_t line = 0; line < fetch.lines; ++line) _mm_prefetch(fetch.from + 64 * line, _MM_HINT_T1);
    fetch.from += kStep;
    _tile_loadd(4, x + k, stride);
    _tile_stream_loadd(6, tile, 64);  // used once a pass: the rows are to stay in the first cache
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, tile + kTile * kDepth, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (both) {
      _tile_loadd(5, x + kTile * depth + k, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr int64_t sum_stride = kColumns * sizeof(float);
  _tile_stored(0, &sums[0][0], sum_stride);
  _tile_stored(1, &sums[0][kTile], sum_stride);
  if (both) {
    _tile_stored(2, &sums[kTile][0], sum_stride);
    _tile_stored(3, &sums[kTile][kTile], sum_stride);
  }
  __m512 low = _mm512_setzero_ps(), high = low;
  if (bias) {
    low = widen_lanes(bias);
    high = widen_lanes(bias + kTile);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const __m512 a = _mm512_add_ps(_mm512_load_ps(&sums[row][0]), low);
    const __m512 b = _mm512_add_ps(_mm512_load_ps(&sums[row][kTile]), high);
    const __m512bh both_halves = _mm512_cvtne2ps_pbh(b, a);
    std::memcpy(y + row * outputs, &both_halves, sizeof both_halves);
  }
}

// The packed blocks first..end of a product.
void multiply(const Product& product, int64_t first, int64_t end) {
  const auto [x, w, bias, y, count, depth, outputs] = product;
  const int64_t passes = (count + kColumns - 1) / kColumns;
  int64_t configured = 0;
  for (int64_t block = first; block < end; ++block) {
    const Half* weight = w + block * kColumns * depth;
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t row = pass * kColumns, height = std::min(kColumns, count - row);
      if (height != configured) configure_product(configured = height);
      product_block(x + row * depth, weight, bias ? bias + block * kColumns : nullptr,
                    y + row * outputs + block * kColumns, height, depth, outputs,
                    fetch_of(pass, passes, block == first, block + 1 == end, weight, depth));
    }
  }
  _tile_release();
}

// --- attention

// A piece's rows lie in tiles of 16, side by side: what is known of a row is a lane of a vector.
struct Scratch {
  alignas(64) Half query[kRows * kMaxDim];      // second operands [row tile][dim / 32]
  alignas(64) Half last_keys[kTile * kMaxDim];  // the last keys, filled up with zeros
  alignas(64) Half values[kKeys * kMaxDim];     // second operands [key / 32][dim / 16]
  alignas(64) float scores[kKeys][kTile];       // of one row tile
  alignas(64) Half probs[kRows * kKeys];        // first operands [row tile][key / 32]
  alignas(64) float sums[kRows * kMaxDim];
  alignas(64) float most[kRows], total[kRows];
};

// 0 below e^-87: results that are not normal numbers cost the processor a hundred cycles each.
__m512 exp_lanes(__m512 x) {
  const __m512 least = _mm512_set1_ps(-87.0f);
  const __mmask16 normal = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
  x = _mm512_max_ps(least, x);  // in this order what is not a number stays so
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
  return _mm512_maskz_scalef_ps(normal, p, n);
}

// In place: element (i, j) of 32 bits to (j, i).
void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Query rows of a piece as second operands: tiles [row / 16][dim / 32]. Those missing are zero.
void pack_queries(const Step& step, const Sequence& s, const Work& work, int64_t rows, Half* packed) {
  for (int64_t row = 0; row < rows; row += kTile) {
    for (int64_t d = 0; d < step.dim; d += kDepth, packed += kTile * kDepth) {
      __m512i lines[16];
      for (int64_t i = 0; i < kTile; ++i) {
        const int64_t at = work.first_row + row + i, head = work.kv_head * step.group + at % step.group;
        lines[i] = row + i < rows ? _mm512_loadu_si512(step.query.at(head, s.row + at / step.group) + d)
                                  : _mm512_setzero_si512();
      }
      transpose(lines);
      for (int64_t i = 0; i < kTile; ++i) _mm512_store_si512(packed + i * kDepth, lines[i]);
    }
  }
}

// Values of keys first..first + count as second operands: two tiles for each 32 keys and 32 dims. Pairs of keys are
// interleaved within each 128 bits, so that the first of the two tiles holds dims 0-3, 8-11, 16-19 and 24-27.
void pack_values(const Step& step, int64_t head, int64_t first, int64_t count, Half* packed) {
  const auto line = [&](int64_t key, int64_t d) {
    return key < count ? _mm512_loadu_si512(step.values.at(head, first + key) + d) : _mm512_setzero_si512();
  };
  for (int64_t key = 0; key < count; key += kDepth, packed += step.value_dim * kDepth) {
    for (int64_t pair = 0; pair < kTile; ++pair) {
      Half* tiles = packed + pair * kDepth;
      for (int64_t d = 0; d < step.value_dim; d += kDepth, tiles += 2 * kTile * kDepth) {
        const __m512i low = line(key + 2 * pair, d), high = line(key + 2 * pair + 1, d);
        _mm512_store_si512(tiles, _mm512_unpacklo_epi16(low, high));
        _mm512_store_si512(tiles + kTile * kDepth, _mm512_unpackhi_epi16(low, high));
      }
    }
  }
}

// Scores of a block of keys for one tile of rows: keys are first operands as they lie in the cache.
void score(const Step& step, const Work& work, int64_t first, int64_t count, const Half* query, Scratch& w) {
  const Sequence& s = step.sequences[work.sequence];
  const int64_t stride = step.keys.token * sizeof(Half);
  for (int64_t key = 0; key < count; key += kTile) {
    const bool whole = key + kTile <= count;
    const Half* keys = whole ? step.keys.at(work.kv_head, s.start + first + key) : w.last_keys;
    _tile_zero(0);
    for (int64_t d = 0; d < step.dim; d += kDepth) {
      _tile_loadd(4, keys + d, whole ? stride : step.dim * sizeof(Half));
      _tile_loadd(5, query + d * kTile, 64);
      _tile_dpbf16ps(0, 4, 5);
    }
    _tile_stored(0, w.scores[key], kTile * sizeof(float));
  }
}

// Scores to weights for one tile of rows, with the running maximum and sum of each. `seen`: the keys of each row, or
// null if all are. Sums so far shrink where the maximum grows.
void weigh(const Step& step, const uint64_t* seen, int64_t tile, Scratch& w) {
  const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity()), scale = _mm512_set1_ps(step.scale);
  const __m512 before = _mm512_load_ps(w.most + tile * kTile);
  __m512i half = _mm512_setzero_si512();
  __m512 top = before;
  for (int64_t key = 0; key < kKeys; ++key) {
    __m512 x = _mm512_mul_ps(_mm512_load_ps(w.scores[key]), scale);
    if (seen) {
      if (key % 32 == 0) {
        alignas(64) uint32_t bits_of_row[kTile];
        for (int64_t row = 0; row < kTile; ++row) bits_of_row[row] = static_cast<uint32_t>(seen[row] >> key);
        half = _mm512_load_si512(bits_of_row);
      }
      x = _mm512_mask_mov_ps(lowest, _mm512_test_epi32_mask(half, _mm512_set1_epi32(1u << (key % 32))), x);
    }
    _mm512_store_ps(w.scores[key], x);
    top = _mm512_max_ps(top, x);
  }
  const __m512 reference =
      _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(top, lowest, _CMP_NEQ_UQ), top);  // 0 where nothing is seen yet
  const __m512 keep = exp_lanes(_mm512_sub_ps(before, reference));
  __m512 total = _mm512_mul_ps(_mm512_load_ps(w.total + tile * kTile), keep);
  uint32_t grown = _mm512_cmp_ps_mask(top, before, _CMP_GT_OQ) & ~_mm512_cmp_ps_mask(before, lowest, _CMP_EQ_OQ);
  if (grown) {
    alignas(64) float kept[kTile];
    _mm512_store_ps(kept, keep);
    for (; grown; grown &= grown - 1) {
      const int64_t row = __builtin_ctz(grown);
      float* sums = w.sums + (tile * kTile + row) * step.value_dim;
      for (int64_t d = 0; d < step.value_dim; d += kTile) {
        _mm512_store_ps(sums + d, _mm512_mul_ps(_mm512_load_ps(sums + d), _mm512_set1_ps(kept[row])));
      }
    }
  }
  alignas(64) static const std::array<int16_t, 32> pairs = [] {
    std::array<int16_t, 32> order{};
    for (int16_t i = 0; i < 32; ++i) order[i] = i / 2 + 16 * (i % 2);
    return order;
  }();
  const __m512i interleave = _mm512_load_si512(pairs.data());
  for (int64_t part = 0; part < kKeys / kDepth; ++part) {
    __m512i lines[16];
    for (int64_t i = 0; i < kTile; ++i) {
      const int64_t key = part * kDepth + 2 * i;
      const __m512 low = exp_lanes(_mm512_sub_ps(_mm512_load_ps(w.scores[key]), reference));
      const __m512 high = exp_lanes(_mm512_sub_ps(_mm512_load_ps(w.scores[key + 1]), reference));
      total = _mm512_add_ps(total, _mm512_add_ps(low, high));
      const __m512bh halves = _mm512_cvtne2ps_pbh(high, low);
      std::memcpy(&lines[i], &halves, sizeof halves);
      lines[i] = _mm512_permutexvar_epi16(interleave, lines[i]);
    }
    transpose(lines);
    Half* probs = w.probs + (tile * kKeys + part * kDepth) * kTile;
    for (int64_t i = 0; i < kTile; ++i) _mm512_store_si512(probs + i * kDepth, lines[i]);
  }
  _mm512_store_ps(w.most + tile * kTile, top);
  _mm512_store_ps(w.total + tile * kTile, total);
}

void gather(const Step& step, int64_t tile, int64_t count, Scratch& w) {
  const int64_t dims = step.value_dim / kTile, stride = step.value_dim * sizeof(float);
  const Half* probs = w.probs + tile * kTile * kKeys;
  _tile_loadd(4, probs, 64);
  if (count > kDepth) _tile_loadd(5, probs + kTile * kDepth, 64);
  for (int64_t d = 0; d < dims; ++d) {
    float* sums = w.sums + tile * kTile * step.value_dim + d * kTile;
    _tile_loadd(0, sums, stride);
    _tile_loadd(6, w.values + d * kTile * kDepth, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (count > kDepth) {
      _tile_loadd(7, w.values + (dims + d) * kTile * kDepth, 64);
      _tile_dpbf16ps(0, 5, 7);
    }
    _tile_stored(0, sums, stride);
  }
}

// The two tiles of pack_values back in order: dims 0-15 or 16-31 of both.
__m512 in_order(__m512 low, __m512 high, bool upper) {
  const __m512i order = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                                         _mm512_set1_epi32(upper ? 8 : 0));
  return _mm512_permutex2var_ps(low, order, high);
}

// One piece: up to 64 (node, head) rows that share a key-value head, over all keys of their sequence.
void attend(const Step& step, const Work& work, Scratch& w) {
  const Sequence& s = step.sequences[work.sequence];
  const int64_t rows = work.rows, tiles = (rows + kTile - 1) / kTile;
  const int64_t last_node = (work.first_row + rows - 1) / step.group;
  pack_queries(step, s, work, rows, w.query);
  std::memset(w.sums, 0, tiles * kTile * step.value_dim * sizeof(float));
  std::fill_n(w.most, tiles * kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(w.total, tiles * kTile, 0.0f);
  const int64_t end = s.cached + (s.tree < 0 ? last_node + 1 : s.nodes);
  const int64_t deepest = s.cached + s.nodes - 1;
  int64_t first = step.window ? std::max<int64_t>(0, s.cached - step.window + 1) : 0;
  for (first -= first % kKeys; first < end; first += kKeys) {
    const int64_t count = std::min(kKeys, end - first);
    pack_values(step, work.kv_head, s.start + first, count, w.values);
    if (const int64_t left = count % kTile) {
      std::memset(w.last_keys, 0, kTile * step.dim * sizeof(Half));
      for (int64_t i = 0; i < left; ++i) {
        std::memcpy(w.last_keys + i * step.dim, step.keys.at(work.kv_head, s.start + first + count - left + i),
                    step.dim * sizeof(Half));
      }
    }
    const bool masked = count < kKeys || first + count > s.cached || (step.window && first <= deepest - step.window);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      uint64_t seen[kTile] = {};
      for (int64_t row = 0, node = -1; masked && row < kTile && tile * kTile + row < rows; ++row) {
        const int64_t mine = (work.first_row + tile * kTile + row) / step.group;
        seen[row] = mine == node ? seen[row - 1] : visible_keys(step, s, mine, first, count);
        node = mine;
      }
      score(step, work, first, count, w.query + tile * kTile * step.dim, w);
      weigh(step, masked ? seen : nullptr, tile, w);
      gather(step, tile, count, w);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = work.first_row + row, head = work.kv_head * step.group + at % step.group;
    Half* out = step.out + ((s.row + at / step.group) * step.heads + head) * step.value_dim;
    const __m512 share = _mm512_set1_ps(1.0f / w.total[row]);
    const float* sums = w.sums + row * step.value_dim;
    for (int64_t d = 0; d < step.value_dim; d += kDepth) {
      const __m512 low = _mm512_load_ps(sums + d), high = _mm512_load_ps(sums + d + kTile);
      const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_mul_ps(in_order(low, high, true), share),
                                                  _mm512_mul_ps(in_order(low, high, false), share));
      std::memcpy(out + d, &halves, sizeof halves);
    }
  }
}

void begin_attention() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, kTile);
  config.load();
}

void end_attention() { _tile_release(); }

}  // namespace
