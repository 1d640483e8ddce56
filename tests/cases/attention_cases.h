// The shapes that attention is tested and timed on, and built data for them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"

namespace fovea::cases {

enum class Lists {
  kNone,        // dense
  kAll,         // every causal block
  kRandom,      // each block with probability `density`, the diagonal always
  kNoDiagonal,  // each block with probability `density`, the diagonal never
  kSomeEmpty,   // as kRandom, but every third list is empty
};

/// A NaN or Inf over key or value `token` of sequence 0, KV head 0.
struct NonFinite {
  float value = 0;
  int64_t token = 0;
  bool is_key = false;
  int64_t column = -1;  // -1: all
};

/// One call. `kv_lens` and `q_lens` have one entry per sequence.
struct AttentionCase {
  std::string name = {};
  std::vector<int64_t> q_lens = {};
  std::vector<int64_t> kv_lens = {};
  int64_t head_dim = 64;
  int64_t num_q_heads = 2;
  int64_t num_kv_heads = 1;
  bool causal = true;
  int64_t window_left = -1;
  bool has_sinks = false;
  float softmax_scale = 0;
  int64_t page_size = 0;  // 0: contiguous; else pages are shuffled and their tails poisoned
  Lists lists = Lists::kNone;
  int64_t block_size = 128;
  double density = 0.3;
  bool has_periphery = false;
  bool is_strided = false;  // q, k, v, out and lse are slices of wider buffers
  std::vector<NonFinite> non_finite = {};
};

/// The case's name, for failure messages.
inline std::ostream& operator<<(std::ostream& out, const AttentionCase& shape) {
  return out << shape.name;
}

/// Every shape that the contract names, small enough for the double-precision reference.
const std::vector<AttentionCase>& attention_cases();

/// Owns the tensors of one call. Everything that the call must not read is NaN, everything that it
/// must not write is checked by is_untouched().
class AttentionData {
 public:
  /// Random normal data from `seed`; the K, V and means of the same seed are the same in f32 and,
  /// rounded, in bf16.
  AttentionData(const AttentionCase& shape, DType dtype, uint64_t seed);

  const AttentionParams& params() const { return params_; }
  AttentionParams& params() { return params_; }

  /// Output and lse as floats, in the order of their views.
  std::vector<float> out() const;
  std::vector<float> lse() const;
  /// Fills out and lse, and everything around them, with a pattern no kernel writes.
  void poison();
  /// Whether everything around out and lse still holds the pattern.
  bool is_untouched() const;

  /// Sets every element of key (or value) t of sequence s and KV head h.
  void set_key(int64_t s, int64_t t, int64_t h, float value);
  void set_value(int64_t s, int64_t t, int64_t h, float value);
  /// Share of the causal (q head, query block, kv block) triples in the lists.
  double density() const { return selection_.density(); }

 private:
  void make_batch(const AttentionCase& shape);
  void make_kv(const AttentionCase& shape, DType dtype, uint64_t seed);
  void write_non_finite(const AttentionCase& shape);
  void make_selection(const AttentionCase& shape, uint64_t seed);
  void make_periphery(const AttentionCase& shape, DType dtype);
  int64_t key_offset(const TensorView& view, int64_t s, int64_t t, int64_t h) const;

  AttentionParams params_;
  Tensor q_, k_, v_, out_, lse_, sinks_, k_mean_, v_mean_;
  std::vector<int64_t> q_offsets_, kv_lens_, kv_offsets_, mean_offsets_;
  std::vector<int32_t> page_table_;
  BlockSelection selection_;
  BlockSelectionView selection_view_;
};

/// Element of an f32 or bf16 view.
float get(const TensorView& view, int64_t offset);
void set(const TensorView& view, int64_t offset, float value);

}  // namespace fovea::cases
