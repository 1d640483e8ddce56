// MInference, arXiv 2407.02490: the last 64 queries show which keys and which distances a head
// attends to; the strongest of both are kept, rounded out to blocks.
#include "fovea/base/parallel.h"
#include "fovea/selector/lab/token_pattern.h"

namespace fovea::lab {
namespace {

constexpr int64_t kLastRows = 64;

class VerticalSlash final : public Method {
 public:
  explicit VerticalSlash(const Sequence& sequence)
      : patterns_(static_cast<size_t>(sequence.num_q_heads)) {
    const SelectorSettings& settings = sequence.params.settings;
    const PackedColumns keys = pack_keys(sequence);
    parallel_for(sequence.context, sequence.num_q_heads, [&](int64_t head, int32_t) {
      const TokenPattern tokens = token_pattern(sequence, keys, head, kLastRows);
      patterns_[static_cast<size_t>(head)] =
          LinePattern(tokens, largest(tokens.by_key, settings.vertical_tokens),
                      largest(tokens.by_distance, settings.slash_tokens), sequence.block_size);
    });
  }

  void judge(const QueryBlock& block, Scratch&, Verdict& verdict) const override {
    patterns_[static_cast<size_t>(block.q_head)].judge(block, verdict);
  }

 private:
  std::vector<LinePattern> patterns_;  // per q head
};

}  // namespace

std::unique_ptr<Method> make_vertical_slash(const Sequence& sequence) {
  return std::make_unique<VerticalSlash>(sequence);
}

}  // namespace fovea::lab
