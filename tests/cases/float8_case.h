// The cases of attention in f8e4m3, made from those of the table.
#pragma once

#include <vector>

#include "tests/cases/attention_cases.h"

namespace fovea::cases {

/// The table's cases in a form that f8e4m3 has: in pages of a multiple of 16 tokens.
std::vector<AttentionCase> float8_cases();

/// kPowersOfTwo: one for each head; the numbers meant are exact in bf16.
enum class Scales { kNone, kPerHead, kPerPage, kPowersOfTwo };

/// Owns the tensors of a call in f8e4m3, quantized from `data` (f32, paged); out is f32. Everything
/// that the call must not read is NaN.
class Float8Data {
 public:
  Float8Data(const AttentionData& data, Scales scales);

  const AttentionParams& params() const { return params_; }
  AttentionParams& params() { return params_; }
  /// Output and lse as floats, in the order of their views.
  std::vector<float> out() const;
  std::vector<float> lse() const;

  /// Sets q, K and V of `data`, which this was made from, to the numbers that the codes mean, and
  /// its means to theirs.
  void dequantize_into(AttentionData& data) const;

  /// Makes every value positive; then out is the sum of weight |value|.
  void drop_signs_of_values();

 private:
  void poison_tails();

  AttentionParams params_;
  Tensor q_, k_, v_, out_, lse_, q_scale_, k_scale_, v_scale_, k_mean_, v_mean_;
};

}  // namespace fovea::cases
