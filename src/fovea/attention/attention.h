// The contract of attention: what goes in, what comes out, and who can compute it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fovea/attention/block_selection.h"
#include "fovea/attention/kv_view.h"
#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

struct AppendKvTask;  // attention/append_kv.h

/// Means of complete KV blocks, through which blocks that a selection left out are still seen:
/// block b adds block_size * exp(softmax_scale * q.k_mean_b) to the denominator and the same weight
/// times v_mean_b to the output. A row sees the means of the blocks strictly before its query block
/// that its list leaves out and that its left window, if any, covers whole. Needs `causal` and a
/// selection; paged K/V needs page_size == block_size. Source: FlashPrefill V2, arXiv 2608.19758.
struct Periphery {
  TensorView k_mean;  // [num_pages, num_kv_heads, head_dim], type of q (of f8e4m3: bf16; a GPU
                      // rounds it to E4M3); empty means no periphery
  TensorView v_mean;  // the same of V
  /// Contiguous K/V only: the means of sequence s are entries block_offsets[s] + b. Paged: page
  /// numbers.
  const int64_t* block_offsets = nullptr;

  bool enabled() const { return !k_mean.empty(); }
};

/// One call of attention. `q`, `out` and `lse` must not overlap K/V or each other.
///
/// Row r of head h sees key t of its sequence when t <= position(r) (if causal) and
/// t >= position(r) - window_left (if window_left >= 0) and the selection, if any, lists t's block.
/// KV head of q head h: h / group_size. Rows that see nothing: out 0, lse -inf (or the sink's
/// logit). NaN or Inf in a key or a value reaches only the rows that see it.
struct AttentionParams {
  TensorView q;  // [total_q, num_q_heads, head_dim], f32, bf16 or f8e4m3
  /// Same type as q, or f8e4m3: under f32 or bf16 on the CPU, under bf16 in decode on a GPU.
  KvView kv;
  RaggedBatch batch;
  TensorView out;  // [total_q, num_q_heads, head_dim], type of q (of f8e4m3: bf16 or f32)
  TensorView
      lse;  // optional: f32 [num_q_heads, total_q], natural log, periphery and sinks included
  TensorView sinks;  // optional: f32 [num_q_heads], a logit that joins the denominator (not scaled)
  float softmax_scale = 0;   // finite, not negative; 0 means 1 / sqrt(head_dim)
  int64_t window_left = -1;  // keys to the left of a row's own position that it sees; -1 means all
  bool causal = true;
  /// A GPU cuts the keys of decode (8 rows a sequence or fewer, on average) over its processors by
  /// what the whole batch needs. True: at fixed places, so that a row's bits depend on no batch
  /// mates; slower. Prefill and the CPU need no such mode.
  bool batch_invariant = false;
  /// The caller's word that all this call reads but q and each sequence's last key and value, in
  /// f8e4m3 its last page, was written by work that had ended when the last kernel in front of it
  /// in its stream began. A GPU then reads it while that kernel runs.
  bool only_last_key_is_new = false;
  /// In (0, 1]. Under 1, decode may leave out values whose weights are small: those that it reads
  /// have at least this share of each row's weights, the others count as zeros. Weights themselves,
  /// and lse, are of all keys. The CPU does; a GPU reads all values.
  float value_share = 1;
  /// Rows that join the pages of `kv` first, as append_kv() writes them, and are counted in the
  /// lengths; f8e4m3 only. Null: all keys are there.
  const AppendKvTask* append = nullptr;
  const BlockSelectionView* selection = nullptr;  // null means dense
  Periphery periphery;                            // needs a selection
  TensorView q_scale;  // f8e4m3 only, optional (1): f32 [num_q_heads], times a code of q

  int64_t num_q_heads() const { return q.shape[1]; }
  int64_t head_dim() const { return q.shape[2]; }
  int64_t group_size() const { return num_q_heads() / kv.num_kv_heads(); }
  /// softmax_scale with its default resolved.
  float scale() const;
};

/// One way of computing attention.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  /// For example "cpu_avx512_bf16".
  virtual std::string_view name() const = 0;
  /// Empty when run() can compute `params` here, else the reason in a few words.
  virtual std::string why_unsupported(const AttentionParams& params,
                                      const Context& context) const = 0;
  /// Whether run() does `params.append` too; else it has been done before.
  virtual bool appends(const AttentionParams&, const Context&) const { return false; }
  /// Precondition: check_attention_params passed and why_unsupported is empty.
  virtual void run(const AttentionParams& params, const Context& context) const = 0;
};

/// All backends of this build, fastest first, the reference last.
std::span<const AttentionBackend* const> attention_backends();

/// Throws kInvalidArgument naming the first rule that `params` breaks, in the order of its members.
void check_attention_params(const AttentionParams& params, const Context& context);

/// Computes attention with the first backend that can, or with the one FOVEA_ATTENTION_BACKEND
/// names. Throws kInvalidArgument as check_attention_params does, kUnsupported listing every
/// backend's reason.
void attend(const AttentionParams& params, const Context& context);

/// The backend attend() would use. Throws as attend() does.
const AttentionBackend& choose_attention_backend(const AttentionParams& params,
                                                 const Context& context);

}  // namespace fovea
