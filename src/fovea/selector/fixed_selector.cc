#include "fovea/selector/fixed_selector.h"

#include "fovea/selector/selection_rules.h"

namespace fovea {
namespace {

class FixedSelector final : public SelectorBackend {
 public:
  std::string_view name() const override { return "fixed"; }

  std::string why_unsupported(const SelectorParams& params, const Context& context) const override {
    if (context.device.type != DeviceType::kCpu) return "runs on the CPU only";
    const SelectorMethod method = params.settings.method;
    if (method == SelectorMethod::kAll || method == SelectorMethod::kStreaming) return "";
    for (const SequencePlan& plan : plan_sequences(params)) {
      if (plan.num_q_blocks() > 0 && plan.first_block < plan.dense_from) {
        return "the method scores keys";
      }
    }
    return "";
  }

  void run(const SelectorParams& params, const Context&, BlockSelection& selection) const override {
    const std::vector<SequencePlan> plans = plan_sequences(params);
    SelectionBuilder builder(params, plans, 1);
    std::vector<int32_t>& pool = builder.pool(0);
    for (const SequencePlan& plan : plans) {
      for (int64_t i = plan.first_block; i < plan.end_block; ++i) {
        const ForcedBlocks forced = forced_blocks(params.settings, plan, i);
        const auto begin = static_cast<int64_t>(pool.size());
        for (int64_t b = 0; b <= i; ++b) {
          if (b < forced.sink_end || b >= forced.local_begin) {
            pool.push_back(static_cast<int32_t>(b));
          }
        }
        for (int64_t h = 0; h < params.q.shape[1]; ++h) {  // the heads share one list in the pool
          builder.finish_list(plan, h, i, 0, begin, forced.count(i), 0);
        }
      }
    }
    builder.build(selection);
  }
};

}  // namespace

const SelectorBackend& fixed_selector() {
  static const FixedSelector selector;
  return selector;
}

}  // namespace fovea
