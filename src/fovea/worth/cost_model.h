// FLOPs and bytes of every operation of a step, and what a roofline makes of them: time,
// attention's share, intensity, and which resource binds.
//
// Counting rules. A multiply-add is two FLOPs. Attention counts the causal pairs exactly. Bytes are
// the least traffic: weights once, KV once, activations in and out of each operation. Tokens choose
// experts evenly, so a batch of t tokens touches E (1 - (1 - k/E)^t) of them. Each operation takes
// max(FLOPs / matmul rate, bytes / copy rate), one after another; launches, communication and
// imbalance cost nothing here, so real steps are slower and real shares differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/worth/device_rates.h"
#include "fovea/worth/model_shape.h"

namespace fovea::worth {

enum class OpGroup { kAttention, kLinearAttention, kMatmul, kKvWrite, kPointwise, kLmHead };
std::string_view op_group_name(OpGroup group);

/// One kind of operation, added over the layers that have it.
struct OpCost {
  std::string name;  // "attention_full", "qkv_projection" ...
  OpGroup group = OpGroup::kMatmul;
  double flops = 0;
  double bytes = 0;
  double time_s = 0;
  bool compute_bound = false;
};

/// One step: a whole prefill, or one decode step of a batch.
struct StepCost {
  std::vector<OpCost> ops;
  double flops = 0;
  double bytes = 0;
  double time_s = 0;

  double group_time_s(OpGroup group) const;
  /// p: softmax attention's share of the step's time. Linear attention, projections and KV writes
  /// are not in it.
  double attention_share() const;
  /// FLOPs for each byte of softmax attention; 0 when the model has none.
  double attention_intensity() const;
  /// "compute" or "memory": what most of softmax attention's time waits for.
  std::string_view attention_bound() const;
  /// The same of the whole step.
  std::string_view step_bound() const;
};

/// Prefill of `num_tokens` prompt tokens in each of `batch_size` sequences, `cached_tokens` before
/// them being in the KV cache already. Only the last position of a sequence goes through the LM
/// head. Throws kInvalidArgument for counts below 1 (cached: 0) or above 1e9.
StepCost prefill_cost(const ModelShape& shape, const DeviceRates& device, int64_t num_tokens,
                      int64_t cached_tokens = 0, int64_t batch_size = 1);

/// One decode step: each of `batch_size` sequences computes one token, which sees `context` tokens,
/// itself included.
StepCost decode_cost(const ModelShape& shape, const DeviceRates& device, int64_t context,
                     int64_t batch_size = 1);

}  // namespace fovea::worth
