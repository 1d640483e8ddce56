// What a transformer does with rows of activations between two calls of attention, on one device.
#pragma once

#include <cstdint>
#include <memory>

#include "fovea/base/context.h"
#include "fovea/ops/expert_weights.h"
#include "fovea/ops/gated_activation.h"
#include "fovea/ops/matmul.h"
#include "fovea/ops/rope.h"
#include "fovea/ops/sampling_rule.h"
#include "fovea/tensor/block_stats_view.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// The way from the product with the q, k and v matrices to attention: bias, norms of heads, RoPE;
/// q into its buffer, k and v into their pages.
struct QkvTask {
  TensorView qkv;   // [rows, (num_q_heads + 2 num_kv_heads) head_dim], product type; overwritten
  TensorView bias;  // f32 [(num_q_heads + 2 num_kv_heads) head_dim], or empty
  TensorView q_norm, k_norm;  // f32 [head_dim], or empty
  float eps = 0;
  const RopeTable* table = nullptr;
  int64_t first_row = 0;  // row r takes row first_row + r of the table
  TensorView q;           // out: [rows, num_q_heads, head_dim], compute type
  TensorView k, v;        // out: pages [num_pages, num_kv_heads, page_size, head_dim]
  const int32_t* page_table = nullptr;
  /// Of row 0 of the table: row r sits at *position + first_row + r.
  const int64_t* position = nullptr;
  /// Null, or the statistics of pages that these rows fill, where has_page_stats(): computed by
  /// what writes k and v, bit by bit as compute_block_stats() would afterwards. Earlier rows of the
  /// first page are read back.
  const BlockStatsView* stats = nullptr;
};

/// In a step of one row, what begins each half of a layer: norm(), matmul() of what it gives, and
/// finish_qkv(), activate() or nothing behind it.
struct OneRowTask {
  TensorView residual = {};     // f32 [1, dim]
  TensorView norm_weight = {};  // this, eps and layer as norm() takes them
  float eps = 0;
  int64_t layer = -1;
  const PackedWeights* weights = nullptr;
  TensorView product = {};       // product type or f32; what is behind may leave it as it was
  const QkvTask* qkv = nullptr;  // whose qkv is `product`; or null
  GateFunction function = GateFunction::kSilu;
  TensorView activated = {};  // compute type, or empty
};

/// A mixture of gated mlps: the router's softmax over all experts picks `top_k` for each row, equal
/// ones by their number, and the row's sum of their outputs, weighted by what the softmax gave
/// them, goes onto the residual stream. Biases may be empty. Source: arXiv 2101.03961.
struct MoeTask {
  TensorView normed;                       // compute type [rows, dim]
  const PackedWeights* router = nullptr;   // [num_experts, dim]
  const ExpertWeights* gate_up = nullptr;  // [2 expert_dim, dim] each, gates first
  const ExpertWeights* down = nullptr;     // [dim, expert_dim] each
  TensorView router_bias;                  // f32 [num_experts]
  TensorView gate_up_bias, down_bias;      // f32 [num_experts, 2 expert_dim], [num_experts, dim]
  int64_t top_k = 0;
  bool normalise = false;  // weights of the chosen experts sum to one
  GateFunction function = GateFunction::kSilu;
  TensorView residual;  // f32 [rows, dim]
};

/// One worker's operations on rows: a thread's on the CPU, which works a prompt in slabs of
/// kSlabRows rows, or a stream's on a GPU, which takes all rows of a step at once. Tensors and
/// pointers are memory of the worker's device. "Compute type" is the type of weights, K and V,
/// "product type" that of a product which is not added to the residual stream.
///
/// All throw kInvalidArgument on shapes that do not fit. On a GPU nothing waits but what says so.
class RowOps {
 public:
  virtual ~RowOps() = default;

  /// Says that a step of `num_rows` rows, all workers together, begins.
  virtual void begin_step(int64_t num_rows) = 0;

  /// out = rows of `table` [vocab_size, dim], compute type, times `scale`; out: f32 [rows, dim].
  virtual void embed(const int32_t* tokens, const TensorView& table, float scale,
                     const TensorView& out) = 0;

  /// As rms_norm(), x: f32 [rows, dim], out: compute type. Notes `layer` when x is not finite.
  virtual void norm(const TensorView& x, const TensorView& weight, float eps, int64_t layer,
                    const TensorView& out) = 0;
  /// The least layer that norm() noted since begin_step(), or -1. On a GPU: waits.
  virtual int64_t non_finite_layer() = 0;

  /// out = in x weights^T; in: compute type [rows, in_features], out: product type or f32.
  virtual void matmul(const TensorView& in, const PackedWeights& weights,
                      const TensorView& out) = 0;
  /// residual += in x weights^T; residual: f32.
  virtual void matmul_add(const TensorView& in, const PackedWeights& weights,
                          const TensorView& residual) = 0;

  /// rows += bias; bias: f32 [dim], rows: f32 [rows, dim].
  virtual void add_bias(const TensorView& bias, const TensorView& rows) = 0;

  virtual void finish_qkv(const QkvTask& task) = 0;
  /// Whether finish_qkv() can compute statistics too: a GPU, in steps of several rows.
  virtual bool has_page_stats(int64_t /*head_dim*/, int64_t /*page_size*/) const { return false; }

  /// out = function(gate) * up; gate_up: product type [rows, 2 mlp_dim], out: compute type.
  virtual void activate(GateFunction function, const TensorView& gate_up,
                        const TensorView& out) = 0;
  /// residual += rms_norm(x) * weight; x: product type, residual: f32.
  virtual void add_normed(const TensorView& x, const TensorView& weight, float eps,
                          const TensorView& residual) = 0;

  virtual void moe(const MoeTask& task) = 0;

  /// *token = what draw_token() draws from logits, f32 [1, vocab_size]. Throws as that does; a GPU
  /// says -1 where logits hold a NaN.
  virtual void draw(const TensorView& logits, const Draw* draw, int32_t* token) = 0;

  /// Does a task in fewer passes than its operations one after another, if the device can: a GPU.
  /// Says whether it did anything.
  virtual bool run_one_row(const OneRowTask&) { return false; }
};

/// Type of a product that is not added to the residual stream: f32 on the CPU, bf16 on a GPU.
DType product_dtype(Device device);

/// What a GPU's RowOps will be asked for.
struct RowScratchShape {
  int64_t rows = 0;  // of a step at most
  int64_t model_dim = 0, max_in_features = 0;
  int64_t num_experts = 0, top_k = 0, expert_dim = 0;  // 0: no mixture
  DType weight_dtype = DType::kBF16;
};
/// Bytes that it takes for a moment at most, and keeps for its products; 0 on the CPU.
int64_t row_scratch_bytes(const RowScratchShape& shape, Device device);

/// Throws kInvalidArgument unless the task's shapes fit each other.
void check_moe(const MoeTask& task);

/// Of the context's device. Throws kDevice or kUnsupported when it cannot be used.
std::unique_ptr<RowOps> make_row_ops(DType compute_dtype, const Context& context);

}  // namespace fovea
