#include "fovea/quality/calibrate.h"

#include <algorithm>
#include <utility>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

double block_loss(const AgreementBlock& block, LossKind kind) {
  return kind == LossKind::kAgreement ? 1 - block.agreement : block.nll_increase;
}

}  // namespace

LossKind parse_loss_kind(std::string_view name) {
  for (const LossKind kind : {LossKind::kAgreement, LossKind::kNll}) {
    if (loss_kind_name(kind) == name) return kind;
  }
  fail(ErrorCode::kInvalidArgument, "unknown loss \"{}\", use agreement or nll", name);
}

std::string_view loss_kind_name(LossKind kind) {
  return kind == LossKind::kAgreement ? "agreement" : "nll";
}

double AttentionLoss::value(LossKind kind) const {
  return kind == LossKind::kAgreement ? 1 - agreement.agreement : agreement.nll_increase;
}

double AttentionLoss::squared_change() const {
  double sum = 0;
  for (const double change : agreement.position_nll_increase) sum += change * change;
  return sum / static_cast<double>(agreement.num_positions);
}

Interval AttentionLoss::interval(LossKind kind) const {
  PairedValues losses;
  for (const AgreementBlock& block : agreement.blocks) losses.a.push_back(block_loss(block, kind));
  losses.b.assign(losses.a.size(), 0);
  return paired_difference({&losses, 1}).interval;
}

LossMeter::LossMeter(std::shared_ptr<const Model> model, std::vector<std::vector<int32_t>> texts,
                     const PrefillOptions& options)
    : model_(std::move(model)), texts_(std::move(texts)) {
  check_argument(!texts_.empty(), "a loss needs texts to be measured on");
  read({}, options, [&](std::vector<TokenScore> scores, const PrefillReport&) {
    dense_.push_back(std::move(scores));
  });
}

AttentionLoss LossMeter::measure(const AttentionSettings& settings,
                                 const PrefillOptions& options) const {
  AttentionLoss loss;
  std::vector<Agreement> parts;
  read(settings, options, [&](const std::vector<TokenScore>& scores, const PrefillReport& report) {
    const std::vector<TokenScore>& dense = dense_[parts.size()];
    parts.push_back(compare_scores(dense, scores, static_cast<int64_t>(dense.size() / 2)));
    loss.density += report.density() / static_cast<double>(texts_.size());
    loss.prefill_ms += report.times.total_ms / static_cast<double>(texts_.size());
  });
  loss.agreement = join_agreements(parts);
  return loss;
}

void LossMeter::read(
    const AttentionSettings& settings, const PrefillOptions& options,
    const std::function<void(std::vector<TokenScore>, const PrefillReport&)>& take) const {
  const auto num_texts = static_cast<double>(texts_.size());
  for (size_t i = 0; i < texts_.size(); ++i) {
    SessionOptions session_options;
    session_options.attention = settings;
    session_options.max_len = static_cast<int64_t>(texts_[i].size());
    Session session(model_, session_options);
    PrefillOptions prefill = options;
    if (options.progress) {
      prefill.progress = [&](double share) {
        options.progress((static_cast<double>(i) + share) / num_texts);
      };
    }
    std::vector<TokenScore> scores = session.score(texts_[i], prefill);
    take(std::move(scores), session.report());
  }
}

std::optional<size_t> first_good(size_t size, const std::function<bool(size_t)>& is_good) {
  if (size == 0 || !is_good(size - 1)) return std::nullopt;
  size_t good = size - 1;
  size_t begin = 0;  // everything before it is bad
  while (begin < good) {
    const size_t middle = begin + (good - begin) / 2;
    if (is_good(middle)) {
      good = middle;
    } else {
      begin = middle + 1;
    }
  }
  return good;
}

}  // namespace fovea::quality
