#include "fovea/quality/agreement.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea::quality {

double Agreement::perplexity() const { return std::exp(nll); }

Agreement compare_scores(std::span<const TokenScore> dense, std::span<const TokenScore> other,
                         int64_t first_position) {
  check_argument(dense.size() == other.size(),
                 "two readings of one text must be of one length, are {} and {}", dense.size(),
                 other.size());
  check_argument(first_position >= 0 && first_position < static_cast<int64_t>(dense.size()),
                 "a comparison from position {} on needs more than the {} positions of the text",
                 first_position, dense.size());
  Agreement result;
  AgreementBlock block;
  double num_same = 0;
  const auto close_block = [&] {
    block.agreement /= static_cast<double>(block.num_positions);
    block.nll_increase /= static_cast<double>(block.num_positions);
    result.blocks.push_back(block);
    block = {};
  };
  for (auto i = static_cast<size_t>(first_position); i < dense.size(); ++i) {
    const double same = dense[i].best_token == other[i].best_token ? 1 : 0;
    const float increase = dense[i].target_logprob - other[i].target_logprob;
    result.position_nll_increase.push_back(increase);
    result.nll -= dense[i].target_logprob;
    result.nll_increase += increase;
    num_same += same;
    block.agreement += same;
    block.nll_increase += increase;
    if (++block.num_positions == kAgreementBlock) close_block();
  }
  if (block.num_positions > 0) close_block();
  result.num_positions = static_cast<int64_t>(result.position_nll_increase.size());
  const auto count = static_cast<double>(result.num_positions);
  result.agreement = num_same / count;
  result.nll /= count;
  result.nll_increase /= count;
  return result;
}

Agreement join_agreements(std::span<const Agreement> parts) {
  check_argument(!parts.empty(), "there are no comparisons to join");
  Agreement joined;
  for (const Agreement& part : parts) {
    const auto count = static_cast<double>(part.num_positions);
    joined.num_positions += part.num_positions;
    joined.agreement += part.agreement * count;
    joined.nll += part.nll * count;
    joined.nll_increase += part.nll_increase * count;
    joined.position_nll_increase.insert(joined.position_nll_increase.end(),
                                        part.position_nll_increase.begin(),
                                        part.position_nll_increase.end());
    joined.blocks.insert(joined.blocks.end(), part.blocks.begin(), part.blocks.end());
  }
  const auto count = static_cast<double>(joined.num_positions);
  joined.agreement /= count;
  joined.nll /= count;
  joined.nll_increase /= count;
  return joined;
}

std::vector<std::vector<int32_t>> text_windows(std::span<const int32_t> text, int64_t length,
                                               int64_t num_windows, std::optional<int32_t> bos_id) {
  const int64_t num_bos = bos_id ? 1 : 0;
  check_argument(length > num_bos, "a piece of text must have tokens, asked for {}", length);
  check_argument(num_windows > 0, "the pieces of text must be at least 1, are {}", num_windows);
  const auto num_available = static_cast<int64_t>(text.size());
  const int64_t size = length - num_bos;
  check_argument(size <= num_available, "the text has {} tokens, a piece of {} needs {}",
                 num_available, length, size);
  std::vector<std::vector<int32_t>> windows;
  for (int64_t i = 0; i < num_windows; ++i) {
    const int64_t begin = num_windows > 1 ? (num_available - size) * i / (num_windows - 1) : 0;
    std::vector<int32_t>& window = windows.emplace_back();
    if (bos_id) window.push_back(*bos_id);
    const std::span<const int32_t> piece =
        text.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
    window.insert(window.end(), piece.begin(), piece.end());
  }
  return windows;
}

}  // namespace fovea::quality
