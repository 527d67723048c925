// What the kernels' two kinds share: bfloat16, packed weights, the layout of a step's attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

using Half = uint16_t;  // bfloat16 bits

constexpr int64_t kTile = 16;    // output features of half a packed block, whose pairs lie side by side
constexpr int64_t kDepth = 32;   // elements of a row that a packed block holds together
constexpr int64_t kColumns = 32; // output features of a packed block
constexpr int64_t kKeys = 64;    // keys that attention looks at together
constexpr int64_t kRows = 64;    // query rows of a piece of attention's work
constexpr int64_t kMaxDim = 256;
constexpr int64_t kStep = 2048;  // bytes of a packed block for each 32 of its depth

inline float widen(Half half) {
  const uint32_t wide = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// A product: `count` rows of `depth` elements times the packed blocks of `outputs` features.
struct Product {
  const Half *x, *weight, *bias;  // bias: may be null
  Half* y;
  int64_t count, depth, outputs;
};

struct Sequence {
  int64_t row, nodes, start, cached, tree;  // tree: offset of its visibility matrix, -1 for a chain
};

struct Heads {
  const Half* data;
  int64_t head, token;  // strides in elements

  const Half* at(int64_t h, int64_t t) const { return data + h * head + t * token; }
};

struct Work {
  int64_t sequence, kv_head, first_row, rows;
};

struct Step {
  Heads query, keys, values;
  const Sequence* sequences;
  const int32_t* depths;   // [tokens] of each node in its tree
  const uint8_t* visible;  // node i sees node j of its tree
  int64_t group, dim, value_dim, heads;
  float scale;
  int64_t window;  // 0: none
  Half* out;
};

uint64_t low_bits(int64_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// Bits of the keys first..first + count that a node may look at.
uint64_t visible_keys(const Step& step, const Sequence& s, int64_t node, int64_t first, int64_t count) {
  const int64_t old = std::clamp<int64_t>(s.cached - first, 0, count);  // those before the tree
  const int64_t start = first + old - s.cached;                         // the tree's node that comes next
  uint64_t seen = low_bits(old);
  if (old < count) {
    uint64_t own;
    if (s.tree < 0) {
      own = low_bits(std::max<int64_t>(0, node + 1 - start));
    } else {
      const uint8_t* row = step.visible + s.tree + node * s.nodes + start;
      own = 0;
      for (int64_t i = 0; i < count - old; ++i) own |= uint64_t{row[i]} << i;
    }
    seen |= (own & low_bits(count - old)) << old;
  }
  if (step.window) {
    const int32_t* depths = step.depths + s.row;
    const int64_t lowest = s.cached + depths[node] - step.window;  // the newest position out of sight
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = i < old ? first + i : s.cached + depths[start + i - old];
      if (position <= lowest) seen &= ~(uint64_t{1} << i);
    }
  }
  return seen;
}

}  // namespace
