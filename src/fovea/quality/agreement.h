// How far an attention's next-token choices and probabilities stray from dense attention's on real
// text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fovea/engine/session.h"

namespace fovea::quality {

/// Positions that a bootstrap draws together: neighbours share their context, so that they are not
/// independent trials.
constexpr int64_t kAgreementBlock = 64;

struct AgreementBlock {
  int64_t num_positions = 0;  // kAgreementBlock, fewer in the last one
  double agreement = 0;       // share of them at which both choose the same token, 0 ... 1
  double nll_increase = 0;    // mean over them, see Agreement
};

struct Agreement {
  int64_t num_positions = 0;
  double agreement = 0;     // share of positions at which both choose the same token
  double nll = 0;           // dense: mean negative log-probability of the text's tokens, in nats
  double nll_increase = 0;  // mean of the other's minus dense's; exp of it is the perplexities'
                            // ratio
  std::vector<float> position_nll_increase;  // at each position
  std::vector<AgreementBlock> blocks;        // in order; the bootstrap's units

  double perplexity() const;  // of dense
};

/// Compares two readings of one text (Session::score) from `first_position` on: before it, a
/// sparse attention reads everything and would only dilute what is measured. Throws
/// kInvalidArgument when the two differ in length or nothing is left to compare.
Agreement compare_scores(std::span<const TokenScore> dense, std::span<const TokenScore> other,
                         int64_t first_position = 0);

/// Joins comparisons of several texts into one, block by block. Throws kInvalidArgument for none.
Agreement join_agreements(std::span<const Agreement> parts);

/// `num_windows` pieces of `length` tokens, spread evenly over `text` and overlapping only when it
/// is too short for them; `bos_id`, if given, comes first in each. Throws kInvalidArgument when
/// `text` is shorter than one piece, or the numbers are not positive.
std::vector<std::vector<int32_t>> text_windows(std::span<const int32_t> text, int64_t length,
                                               int64_t num_windows, std::optional<int32_t> bos_id);

}  // namespace fovea::quality
