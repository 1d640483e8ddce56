#include "fovea/worth/cost_model.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

constexpr int64_t kMostTokens = 1'000'000'000;

// A step in the terms that costs depend on. Doubles throughout: counts reach 1e9 squared.
struct Work {
  double batch = 0;
  double new_tokens = 0;     // computed now, in each sequence
  double cached_tokens = 0;  // before them
  bool is_decode = false;

  double tokens() const { return batch * new_tokens; }  // through projections and MLPs
  double context() const { return cached_tokens + new_tokens; }
};

// Causal (query, key) pairs of one head and sequence, each query seeing at most `window` keys,
// itself included.
double causal_pairs(const Work& work, double window) {
  const double first = work.cached_tokens + 1;  // keys that the first query sees
  const double last = work.context();
  if (window <= first) return work.new_tokens * window;
  const double growing = std::min(last, window) - first + 1;  // queries that see all there is
  return growing * (first + std::min(last, window)) / 2 + (work.new_tokens - growing) * window;
}

// KV tokens of a sequence that some query reads.
double kv_tokens_read(const Work& work, double window) {
  return std::min(work.context(), work.new_tokens + window - 1);
}

class Counter {
 public:
  Counter(const ModelShape& shape, const DeviceRates& device, const Work& work)
      : shape_(shape), device_(device), work_(work) {}

  StepCost run() {
    for (const AttentionKind kind :
         {AttentionKind::kFull, AttentionKind::kSliding, AttentionKind::kLinear}) {
      const auto layers = static_cast<double>(shape_.count(kind));
      if (layers == 0) continue;
      if (kind == AttentionKind::kLinear) {
        add_linear_attention(layers);
      } else {
        add_projections(kind, layers);
        if (shape_.is_latent()) {
          add_latent_attention(layers);
        } else {
          add_attention(kind, layers);
        }
      }
    }
    add_mlps();
    add_pointwise();
    add_lm_head();
    for (const OpCost& op : cost_.ops) {
      cost_.flops += op.flops;
      cost_.bytes += op.bytes;
      cost_.time_s += op.time_s;
    }
    return cost_;
  }

 private:
  // `flops` and `bytes` are of one layer: the roofline is taken for each layer, then multiplied.
  void add(const std::string& name, OpGroup group, double layers, double flops, double bytes,
           bool is_experts = false) {
    const bool is_attention = group == OpGroup::kAttention;
    const double own_tflops = is_attention ? device_.attention_tflops
                              : is_experts ? device_.expert_tflops
                                           : 0;
    const double tflops = own_tflops > 0 ? own_tflops : device_.gemm_tflops;
    const double gbps =
        is_attention && device_.attention_gbps > 0 ? device_.attention_gbps : device_.copy_gbps;
    const double compute_s = flops / (tflops * 1e12);
    const double memory_s = bytes / (gbps * 1e9);
    cost_.ops.push_back({name, group, layers * flops, layers * bytes,
                         layers * std::max(compute_s, memory_s), compute_s > memory_s});
  }

  void add_matmul(const std::string& name, double layers, double parameters, double in_width,
                  double out_width) {
    add(name, OpGroup::kMatmul, layers, 2 * work_.tokens() * parameters,
        parameters * shape_.precision.weight_bytes +
            work_.tokens() * (in_width + out_width) * shape_.precision.activation_bytes);
  }

  void add_projections(AttentionKind kind, double layers);
  void add_attention(AttentionKind kind, double layers);
  void add_latent_attention(double layers);
  void add_linear_attention(double layers);
  void add_mlps();
  void add_pointwise();
  void add_lm_head();

  const ModelShape& shape_;
  const DeviceRates& device_;
  const Work& work_;
  StepCost cost_;
};

void Counter::add_projections(AttentionKind kind, double layers) {
  const auto dim = static_cast<double>(shape_.model_dim);
  const auto out_width = static_cast<double>(shape_.num_q_heads * shape_.value_head_dim);
  const double out_parameters = out_width * dim;
  const double in_parameters = attention_parameters(shape_, kind) - out_parameters;
  const auto q_width = static_cast<double>(shape_.num_q_heads * shape_.head_dim);
  const double kv_width =
      shape_.is_latent()
          ? static_cast<double>(shape_.latent.kv_rank + shape_.latent.rope_head_dim)
          : static_cast<double>(shape_.num_kv_heads * (shape_.head_dim + shape_.value_head_dim));
  const char* suffix = kind == AttentionKind::kSliding ? "_sliding" : "";
  // In the absorbed form of latent attention, decode multiplies by the same kv_up weights: the same
  // FLOPs.
  add_matmul(std::string("qkv_projection") + suffix, layers, in_parameters, dim,
             q_width + kv_width);
  add_matmul(std::string("output_projection") + suffix, layers, out_parameters, out_width, dim);
  add(std::string("kv_write") + suffix, OpGroup::kKvWrite, layers, 0,
      work_.tokens() * kv_width * (shape_.precision.activation_bytes + shape_.precision.kv_bytes));
}

void Counter::add_attention(AttentionKind kind, double layers) {
  const double window = kind == AttentionKind::kSliding ? static_cast<double>(shape_.sliding_window)
                                                        : work_.context();
  const auto heads = static_cast<double>(shape_.num_q_heads);
  const auto widths = static_cast<double>(shape_.head_dim + shape_.value_head_dim);
  const double flops = 2 * work_.batch * causal_pairs(work_, window) * heads * widths;
  const double kv_bytes = work_.batch * kv_tokens_read(work_, window) *
                          static_cast<double>(shape_.num_kv_heads) * widths *
                          shape_.precision.kv_bytes;
  const double q_and_out_bytes =
      work_.tokens() * heads * widths * shape_.precision.activation_bytes;
  add(kind == AttentionKind::kSliding ? "attention_sliding" : "attention_full", OpGroup::kAttention,
      layers, flops, kv_bytes + q_and_out_bytes);
}

// Prefill expands the latent into keys and values of every head (those of cached tokens again);
// decode attends to the latent itself, which all heads share: more FLOPs for each pair, far fewer
// bytes.
void Counter::add_latent_attention(double layers) {
  const LatentShape& latent = shape_.latent;
  const auto heads = static_cast<double>(shape_.num_q_heads);
  const auto latent_width = static_cast<double>(latent.kv_rank + latent.rope_head_dim);
  const double pairs = work_.batch * causal_pairs(work_, work_.context());
  const auto act_bytes = shape_.precision.activation_bytes;
  if (work_.is_decode) {
    const double widths = latent_width + static_cast<double>(latent.kv_rank);
    add("attention_latent", OpGroup::kAttention, layers, 2 * pairs * heads * widths,
        work_.batch * work_.context() * latent_width * shape_.precision.kv_bytes +
            work_.tokens() * heads * widths * act_bytes);
    return;
  }
  const auto widths = static_cast<double>(shape_.head_dim + shape_.value_head_dim);
  add("attention_full", OpGroup::kAttention, layers, 2 * pairs * heads * widths,
      work_.batch * (work_.context() + work_.new_tokens) * heads * widths * act_bytes);
  if (work_.cached_tokens > 0) {
    const double up_parameters = static_cast<double>(latent.kv_rank) * heads *
                                 static_cast<double>(latent.nope_head_dim + shape_.value_head_dim);
    const double cached = work_.batch * work_.cached_tokens;
    add("kv_expansion_of_cached", OpGroup::kMatmul, layers, 2 * cached * up_parameters,
        cached * (latent_width * shape_.precision.kv_bytes + heads * widths * act_bytes));
  }
}

void Counter::add_linear_attention(double layers) {
  const LinearAttentionShape& linear = shape_.linear;
  const auto dim = static_cast<double>(shape_.model_dim);
  const auto value_width = static_cast<double>(linear.num_value_heads * linear.value_head_dim);
  const auto key_width = static_cast<double>(linear.num_key_heads * linear.key_head_dim);
  add_matmul("linear_attention_projections", layers,
             attention_parameters(shape_, AttentionKind::kLinear), dim + value_width,
             2 * key_width + 2 * value_width + dim);
  // Each token: decay, read by k, correct, read by q: seven operations on each state element. The
  // state is fp32, read and written once a step in decode and kept on chip during a prefill.
  const double state = value_width * static_cast<double>(linear.key_head_dim);
  add("linear_attention_state", OpGroup::kLinearAttention, layers, 7 * work_.tokens() * state,
      2 * work_.batch * state * 4 +
          work_.tokens() * (2 * key_width + 2 * value_width) * shape_.precision.activation_bytes);
}

void Counter::add_mlps() {
  const auto dim = static_cast<double>(shape_.model_dim);
  const auto dense = static_cast<double>(
      std::count_if(shape_.layers.begin(), shape_.layers.end(),
                    [](const LayerShape& layer) { return layer.mlp == MlpKind::kDense; }));
  const double mixtures = static_cast<double>(shape_.layers.size()) - dense;
  if (dense > 0) {
    add_matmul("mlp", dense, dense_mlp_parameters(shape_),
               dim + static_cast<double>(shape_.mlp_dim),
               2 * static_cast<double>(shape_.mlp_dim) + dim);
  }
  if (mixtures == 0) return;
  const MixtureShape& mixture = shape_.mixture;
  const auto experts = static_cast<double>(mixture.num_experts);
  const auto active = static_cast<double>(mixture.experts_per_token);
  const double touched = experts * (1 - std::pow(1 - active / experts, work_.tokens()));
  const auto width = static_cast<double>(mixture.expert_dim);
  add_matmul("router", mixtures, dim * experts, dim, experts);
  add("experts", OpGroup::kMatmul, mixtures,
      2 * work_.tokens() * active * expert_parameters(shape_),
      touched * expert_parameters(shape_) * shape_.precision.expert_bytes +
          work_.tokens() * active * (2 * dim + 3 * width) * shape_.precision.activation_bytes,
      true);
  if (mixture.shared_expert_dim > 0) {
    const auto shared = static_cast<double>(mixture.shared_expert_dim);
    add_matmul("shared_experts", mixtures, shared_expert_parameters(shape_), dim + shared,
               2 * shared + dim);
  }
}

// Two norms with their residuals: read both, write both. RoPE and activations ride in neighbouring
// kernels.
void Counter::add_pointwise() {
  const auto layers = static_cast<double>(shape_.layers.size());
  const double elements = work_.tokens() * static_cast<double>(shape_.model_dim);
  add("norms_and_residuals", OpGroup::kPointwise, layers, 2 * 8 * elements,
      2 * 4 * elements * shape_.precision.activation_bytes);
}

void Counter::add_lm_head() {
  const double parameters =
      static_cast<double>(shape_.vocab_size) * static_cast<double>(shape_.model_dim);
  add("lm_head", OpGroup::kLmHead, 1, 2 * work_.batch * parameters,
      parameters * shape_.precision.weight_bytes +
          work_.batch * static_cast<double>(shape_.vocab_size) * shape_.precision.activation_bytes);
}

StepCost count(const ModelShape& shape, const DeviceRates& device, const Work& work) {
  check_model_shape(shape);
  check_argument(device.gemm_tflops > 0 && device.copy_gbps > 0,
                 "device '{}' has no rates: {} TFLOP/s, {} GB/s", device.name, device.gemm_tflops,
                 device.copy_gbps);
  return Counter(shape, device, work).run();
}

void check_count(int64_t value, int64_t least, const char* what) {
  check_argument(value >= least && value <= kMostTokens, "{} must be between {} and {}, got {}",
                 what, least, kMostTokens, value);
}

}  // namespace

std::string_view op_group_name(OpGroup group) {
  switch (group) {
    case OpGroup::kAttention:
      return "attention";
    case OpGroup::kLinearAttention:
      return "linear_attention";
    case OpGroup::kMatmul:
      return "matmul";
    case OpGroup::kKvWrite:
      return "kv_write";
    case OpGroup::kPointwise:
      return "norm_rope_act";
    case OpGroup::kLmHead:
      return "lm_head";
  }
  return "matmul";
}

double StepCost::group_time_s(OpGroup group) const {
  double sum = 0;
  for (const OpCost& op : ops) sum += op.group == group ? op.time_s : 0;
  return sum;
}

double StepCost::attention_share() const {
  return time_s > 0 ? group_time_s(OpGroup::kAttention) / time_s : 0;
}

double StepCost::attention_intensity() const {
  double attention_flops = 0;
  double attention_bytes = 0;
  for (const OpCost& op : ops) {
    if (op.group != OpGroup::kAttention) continue;
    attention_flops += op.flops;
    attention_bytes += op.bytes;
  }
  return attention_bytes > 0 ? attention_flops / attention_bytes : 0;
}

namespace {

std::string_view bound(const std::vector<OpCost>& ops, bool only_attention) {
  double compute_s = 0;
  double memory_s = 0;
  for (const OpCost& op : ops) {
    if (only_attention && op.group != OpGroup::kAttention) continue;
    (op.compute_bound ? compute_s : memory_s) += op.time_s;
  }
  return compute_s > memory_s ? "compute" : "memory";
}

}  // namespace

std::string_view StepCost::attention_bound() const { return bound(ops, true); }
std::string_view StepCost::step_bound() const { return bound(ops, false); }

StepCost prefill_cost(const ModelShape& shape, const DeviceRates& device, int64_t num_tokens,
                      int64_t cached_tokens, int64_t batch_size) {
  check_count(num_tokens, 1, "the prompt's tokens");
  check_count(cached_tokens, 0, "the cached tokens");
  check_count(batch_size, 1, "the batch size");
  return count(shape, device,
               {static_cast<double>(batch_size), static_cast<double>(num_tokens),
                static_cast<double>(cached_tokens), false});
}

StepCost decode_cost(const ModelShape& shape, const DeviceRates& device, int64_t context,
                     int64_t batch_size) {
  check_count(context, 1, "the context");
  check_count(batch_size, 1, "the batch size");
  return count(shape, device,
               {static_cast<double>(batch_size), 1, static_cast<double>(context - 1), true});
}

}  // namespace fovea::worth
