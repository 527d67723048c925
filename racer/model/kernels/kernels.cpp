// Products and attention of a decoding step in bfloat16: on matrix tiles (tiles.h) or vectors (vectors.h).
//
// racer::pack_weight    lays a weight out for the product, once
// racer::block_linear   rows times packed weight
// racer::block_attend   attention of all sequences of a step over the key-value cache
// racer::begin_step     from here to end_step, racer::attend of this thread is block_attend over the next layer's cache
// racer::top_k          most likely tokens of many rows of logits

#include <omp.h>
#include <torch/library.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "step.h"
#ifdef __AMX_BF16__
#include "tiles.h"
#else
#include "vectors.h"
#endif

namespace {

const Half* bits(const at::Tensor& tensor) { return reinterpret_cast<const Half*>(tensor.const_data_ptr()); }

// --- products

// weight [outputs, depth] to [outputs / 32, depth / 32, 2, 16, 32].
at::Tensor pack_weight(const at::Tensor& weight) {
  TORCH_CHECK(weight.scalar_type() == at::kBFloat16 && weight.dim() == 2, "a bfloat16 matrix is wanted");
  const int64_t outputs = weight.size(0), depth = weight.size(1);
  TORCH_CHECK(outputs % kColumns == 0 && depth % kDepth == 0, "both sizes must be multiples of 32");
  // [block, half, column, step, pair, 2] -> [block, step, half, pair, column, 2]
  return weight.reshape({outputs / kColumns, 2, kTile, depth / kDepth, kTile, 2})
      .permute({0, 3, 1, 4, 2, 5})
      .contiguous()
      .view({outputs / kColumns, depth / kDepth, 2, kTile, kDepth});
}

at::Tensor block_linear(const at::Tensor& rows_in, const at::Tensor& packed, const std::optional<at::Tensor>& bias) {
  const at::Tensor rows = rows_in.contiguous();
  const int64_t outputs = packed.size(0) * kColumns, depth = packed.size(1) * kDepth;
  TORCH_CHECK(rows.size(-1) == depth, "rows of ", depth, " elements are wanted");
  auto shape = rows.sizes().vec();
  shape.back() = outputs;
  at::Tensor out = at::empty(shape, rows.options());
  const Product product{bits(rows), bits(packed), bias ? bits(*bias) : nullptr,
                        reinterpret_cast<Half*>(out.data_ptr()), rows.numel() / depth, depth, outputs};
  const int64_t blocks = outputs / kColumns;
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    multiply(product, blocks * thread / threads, blocks * (thread + 1) / threads);
  }
  return out;
}

// --- attention

Heads heads_of(const at::Tensor& tensor) {  // [heads, tokens, dim]
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16 && tensor.stride(2) == 1, "bfloat16 heads in one piece are wanted");
  return {bits(tensor), tensor.stride(0), tensor.stride(1)};
}

// Writes keys and values [kv_heads, tokens, dim] to `places` of the cache, then attends; out [tokens, heads, dim].
// sequences int64 [n, 5]: first row, nodes, first place, cached tokens, offset into `visible` or -1.
at::Tensor block_attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const at::Tensor& cached_keys, const at::Tensor& cached_values, const at::Tensor& places,
                       const at::Tensor& sequences, const at::Tensor& depths, const at::Tensor& visible, double scale,
                       int64_t window) {
  const int64_t heads = query.size(0), tokens = query.size(1), kv_heads = key.size(0);
  const int64_t dim = query.size(2), value_dim = value.size(2), group = heads / kv_heads;
  TORCH_CHECK(dim % kDepth == 0 && value_dim % kDepth == 0 && std::max(dim, value_dim) <= kMaxDim, "head size");
  at::Tensor out = at::empty({tokens, heads, value_dim}, query.options());
  const Heads new_keys = heads_of(key), new_values = heads_of(value);
  Step step{heads_of(query), heads_of(cached_keys), heads_of(cached_values),
            reinterpret_cast<const Sequence*>(sequences.const_data_ptr<int64_t>()), depths.const_data_ptr<int32_t>(),
            visible.const_data_ptr<uint8_t>(), group, dim, value_dim, heads, static_cast<float>(scale), window,
            reinterpret_cast<Half*>(out.data_ptr())};
  const int64_t* place = places.const_data_ptr<int64_t>();
  std::vector<Work> works;
  for (int64_t i = 0; i < sequences.size(0); ++i) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      const int64_t rows = step.sequences[i].nodes * group, pieces = (rows + kRows - 1) / kRows;
      const int64_t height = ((rows + pieces - 1) / pieces + kLanes - 1) / kLanes * kLanes;
      for (int64_t row = 0; row < rows; row += height) works.push_back({i, h, row, std::min(height, rows - row)});
    }
  }
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t h = 0; h < kv_heads; ++h) {
        std::memcpy(const_cast<Half*>(step.keys.at(h, place[token])), new_keys.at(h, token), dim * sizeof(Half));
        std::memcpy(const_cast<Half*>(step.values.at(h, place[token])), new_values.at(h, token),
                    value_dim * sizeof(Half));
      }
    }
    static thread_local std::unique_ptr<Scratch> scratch = std::make_unique<Scratch>();
    begin_attention();
#pragma omp for schedule(dynamic) nowait
    for (size_t i = 0; i < works.size(); ++i) attend(step, works[i], *scratch);
    end_attention();
  }
  return out;
}

// The step that this thread is in; Python would take as long for each layer's call as the attention of a few rows.
struct CurrentStep {
  std::vector<at::Tensor> keys, values;  // of the layers, in the order in which they attend
  at::Tensor places, sequences, depths, visible;
  size_t layer = 0;
};

thread_local std::optional<CurrentStep> current_step;

void begin_step(std::vector<at::Tensor> keys, std::vector<at::Tensor> values, const at::Tensor& places,
                const at::Tensor& sequences, const at::Tensor& depths, const at::Tensor& visible) {
  current_step.emplace(CurrentStep{std::move(keys), std::move(values), places, sequences, depths, visible});
}

void end_step() { current_step.reset(); }

at::Tensor attend_next(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double scale,
                       std::optional<int64_t> window, std::optional<double> softcap,
                       const std::optional<at::Tensor>& sinks) {
  if (!current_step) {
    static const auto general = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("racer::attend_generally", "")
                                    .typed<decltype(attend_next)>();
    return general.call(query, key, value, scale, window, softcap, sinks);
  }
  CurrentStep& step = *current_step;
  TORCH_CHECK(!softcap && !sinks && step.layer < step.keys.size(), "not a step for the kernels");
  const size_t layer = step.layer++;
  return block_attend(query.select(0, 0), key.select(0, 0), value.select(0, 0), step.keys[layer], step.values[layer],
                     step.places, step.sequences, step.depths, step.visible, scale, window.value_or(0))
      .unsqueeze(0);
}

// --- the most likely tokens

// The k largest of a row, the smaller index first among equals, and their softmax probabilities.
void top_k_row(const Half* row, int64_t length, int64_t k, std::vector<float>& block_most, float* values,
               int32_t* tokens, float* probs) {
  constexpr int64_t block = 128;
  const int64_t blocks = (length + block - 1) / block;
  block_most.assign(blocks, -std::numeric_limits<float>::infinity());
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t end = std::min(length, (b + 1) * block);
    int64_t i = b * block;
    Floats most = splat(block_most[b]);
    for (; i + kLanes <= end; i += kLanes) most = larger(most, widen_lanes(row + i));
    float top = block_most[b];
    for (int64_t lane = 0; lane < kLanes; ++lane) top = std::max(top, most[lane]);
    for (; i < end; ++i) top = std::max(top, widen(row[i]));
    block_most[b] = top;
  }
  int64_t found = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    if (found == k && block_most[b] <= values[k - 1]) continue;
    for (int64_t i = b * block; i < std::min(length, (b + 1) * block); ++i) {
      const float value = widen(row[i]);
      if (found == k && !(value > values[k - 1])) continue;
      int64_t at = std::min(found, k - 1);
      found = std::min(found + 1, k);
      for (; at > 0 && values[at - 1] < value; --at) {
        values[at] = values[at - 1];
        tokens[at] = tokens[at - 1];
      }
      values[at] = value;
      tokens[at] = static_cast<int32_t>(i);
    }
  }
  Floats sums = {};
  int64_t i = 0;
  for (; i + kLanes <= length; i += kLanes) sums += exp_lanes(widen_lanes(row + i) - splat(values[0]));
  float total = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += sums[lane];
  for (; i < length; ++i) total += std::exp(widen(row[i]) - values[0]);
  for (int64_t j = 0; j < k; ++j) probs[j] = std::exp(values[j] - values[0]) / total;
}

// logits [rows, vocab] to tokens int32 and probabilities float32 [rows, k].
std::tuple<at::Tensor, at::Tensor> top_k(const at::Tensor& logits_in, int64_t k) {
  const at::Tensor logits = logits_in.contiguous();
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  at::Tensor tokens = at::zeros({rows, k}, logits.options().dtype(at::kInt));
  at::Tensor probs = at::empty({rows, k}, logits.options().dtype(at::kFloat));
  const Half* from = bits(logits);
  int32_t* token = tokens.data_ptr<int32_t>();
  float* prob = probs.data_ptr<float>();
#pragma omp parallel
  {
    std::vector<float> block_most, values(k);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      top_k_row(from + row * vocab, vocab, k, block_most, values.data(), token + row * k, prob + row * k);
    }
  }
  return {tokens, probs};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(racer, library) {
  library.def("allow() -> bool", allow);
  library.def("pack_weight(Tensor weight) -> Tensor");
  library.def("block_linear(Tensor rows, Tensor packed, Tensor? bias) -> Tensor");
  library.def("top_k(Tensor logits, int k) -> (Tensor, Tensor)");
  library.def(
      "begin_step(Tensor[] keys, Tensor[] values, Tensor places, Tensor sequences, Tensor depths, Tensor visible) -> ()",
      begin_step);
  library.def("end_step() -> ()", end_step);
  library.def(
      "block_attend(Tensor query, Tensor key, Tensor value, Tensor(a!) cached_keys, Tensor(b!) cached_values, "
      "Tensor places, Tensor sequences, Tensor depths, Tensor visible, float scale, int window) -> Tensor");
}

TORCH_LIBRARY_IMPL(racer, CPU, library) {
  library.impl("pack_weight", pack_weight);
  library.impl("block_linear", block_linear);
  library.impl("block_attend", block_attend);
  library.impl("attend", attend_next);
  library.impl("top_k", top_k);
}
