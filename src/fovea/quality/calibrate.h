// Finding the setting of an attention that costs least and loses no more than it may.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/quality/agreement.h"
#include "fovea/quality/statistics.h"

namespace fovea::quality {

/// What counts as loss against dense attention on the same text.
enum class LossKind {
  kAgreement,  // share of positions at which another token is the first choice, 0 ... 1
  kNll,        // increase of the mean negative log-probability of the text's tokens, in nats
};

/// "agreement" or "nll". Throws kInvalidArgument on anything else.
LossKind parse_loss_kind(std::string_view name);
std::string_view loss_kind_name(LossKind kind);

struct AttentionLoss {
  Agreement agreement;  // over all texts
  double density = 0;   // mean over the texts
  double prefill_ms = 0;

  double value(LossKind kind) const;
  /// Mean square of the change of the text's tokens' log-probability, in nats^2: far less noisy
  /// than the losses themselves where little changes.
  double squared_change() const;
  /// By a bootstrap over blocks of kAgreementBlock positions.
  Interval interval(LossKind kind) const;
};

/// Reads texts densely once, then with any attention, and compares. Only the second half of each
/// text counts: in the first, few blocks can be left out.
class LossMeter {
 public:
  /// Throws as Session::score does, and kInvalidArgument without texts.
  LossMeter(std::shared_ptr<const Model> model, std::vector<std::vector<int32_t>> texts,
            const PrefillOptions& options = {});

  /// Throws as Session::score does. `options.progress` is told of all texts as one piece of work.
  AttentionLoss measure(const AttentionSettings& settings,
                        const PrefillOptions& options = {}) const;

 private:
  // Hands each text's scores and report to `take`.
  void read(const AttentionSettings& settings, const PrefillOptions& options,
            const std::function<void(std::vector<TokenScore>, const PrefillReport&)>& take) const;

  std::shared_ptr<const Model> model_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<std::vector<TokenScore>> dense_;
};

/// Bisects 0 ... size - 1 for the first index that is good, taking it that all after a good one are
/// good as well; none when the last one is not. Asks about as few as it can.
std::optional<size_t> first_good(size_t size, const std::function<bool(size_t)>& is_good);

}  // namespace fovea::quality
