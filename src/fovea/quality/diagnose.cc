#include "fovea/quality/diagnose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/parallel.h"
#include "fovea/model_io/model_config.h"
#include "fovea/selector/reference/reference_selector.h"
#include "fovea/selector/selection_rules.h"

namespace fovea::quality {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kNumQuintiles = 5;
constexpr size_t kCentroid = 0;  // place of its score in kScores
constexpr std::array<std::pair<SelectorMethod, const char*>, 4> kScores = {
    {{SelectorMethod::kCentroid, "centroid"},
     {SelectorMethod::kRescue, "rescue, uplifted"},
     {SelectorMethod::kBound, "bound"},
     {SelectorMethod::kWitness, "witness"}}};
/// Fewer free blocks make no quintiles worth the name.
constexpr int64_t kLeastFree = 20;

double quotient(double sum, int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : kNaN;
}

double median(std::vector<float> values) {
  if (values.empty()) return kNaN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

/// Places of free blocks by descending value; equals in order of their number.
std::vector<int64_t> ranks_of(const std::vector<double>& values) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  std::vector<int64_t> ranks(values.size());
  for (size_t place = 0; place < order.size(); ++place) {
    ranks[static_cast<size_t>(order[place])] = static_cast<int64_t>(place);
  }
  return ranks;
}

double sum_of_largest(std::vector<double> values, size_t count) {
  count = std::min(count, values.size());
  std::partial_sort(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count),
                    values.end(), std::greater<>());
  return std::accumulate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
}

}  // namespace

struct Diagnoser::Sample {
  int64_t layer = 0, head = 0, q_block = 0;
  int64_t free_begin = 0, free_end = 0;  // blocks that are not forced
  int64_t budget = 0;                    // of them, those that the density allows
  AttentionMass mass;
  std::vector<double> free_mass;  // of blocks [free_begin, free_end)
  std::vector<int64_t> top;       // places in free_mass of the true top blocks
  std::vector<size_t> top_quintile;
  std::array<std::vector<int64_t>, kScores.size()> top_rank;  // under each score
  std::vector<int64_t> centroid_rank;                         // of every free block
};

double SelectorDiagnosis::density() const {
  const auto sum = [](const std::vector<int64_t>& pairs) {
    return std::accumulate(pairs.begin(), pairs.end(), int64_t{0});
  };
  return quotient(static_cast<double>(sum(kept)), sum(causal));
}

double SelectorDiagnosis::head_density(int64_t layer, int64_t head, int64_t num_heads) const {
  const auto at = static_cast<size_t>(layer * num_heads + head);
  return quotient(static_cast<double>(kept[at]), causal[at]);
}

Diagnoser::Diagnoser(std::shared_ptr<const Model> model, const DiagnoseSettings& settings)
    : model_(std::move(model)), settings_(settings) {
  if (model_->context().device.type != DeviceType::kCpu) {
    fail(ErrorCode::kUnsupported, "diagnosis runs on the CPU only");
  }
  check_argument(!settings_.selectors.empty(), "diagnosis needs a selector to judge");
  const ModelConfig& config = model_->config();
  const auto num_heads = static_cast<size_t>(config.num_layers * config.num_q_heads);
  for (const NamedSelector& selector : settings_.selectors) {
    check_selector_settings(selector.settings);
    const int64_t first = settings_.selectors.front().settings.block_size;
    check_argument(selector.settings.block_size == first,
                   "diagnosis takes one block size, got {} and {}", first,
                   selector.settings.block_size);
    SelectorDiagnosis& diagnosis = sums_.selectors.emplace_back();
    diagnosis.name = selector.name;
    diagnosis.kept.resize(num_heads);
    diagnosis.causal.resize(num_heads);
  }
  for (const auto& [method, name] : kScores) sums_.scores.push_back({name, 0, 0, {}});
  sums_.num_layers = config.num_layers;
  sums_.num_q_heads = config.num_q_heads;
  num_lists_.resize(settings_.selectors.size());
  num_free_lists_.resize(settings_.selectors.size());
}

void Diagnoser::read(std::span<const int32_t> prompt, const PrefillOptions& options) {
  SelectorSettings everything;  // but with statistics, and where selectors are asked
  everything.method = SelectorMethod::kCentroid;
  everything.block_size = settings_.selectors.front().settings.block_size;
  everything.density = 1;
  SessionOptions session_options;
  session_options.attention.selector = everything;
  session_options.attention.min_sparse_len = 0;
  session_options.max_len = static_cast<int64_t>(prompt.size());
  session_options.observer = this;

  const auto num_tokens = static_cast<int64_t>(prompt.size());
  const int64_t last = ceil_div(num_tokens, everything.block_size) - 1;
  sampled_.clear();
  for (int64_t i = 0; i < settings_.num_q_blocks; ++i) {
    const int64_t block = last - (last - last / 4) * i / settings_.num_q_blocks;
    if (sampled_.empty() || sampled_.back() != block) sampled_.push_back(block);
  }
  Session session(model_, session_options);
  session.prefill(prompt, options);
  ++sums_.num_prompts;
}

/// The call under other settings, with the statistics that these need.
SelectorParams Diagnoser::with_settings(const SelectorParams& params,
                                        const SelectorSettings& settings) {
  SelectorParams changed = params;
  changed.settings = settings;
  if (!reads_witnesses(settings.method)) return changed;
  const auto found = stats_.find(settings.num_witnesses);
  if (found != stats_.end()) {
    changed.stats = found->second.view();
    return changed;
  }
  const KvView& kv = params.kv;
  BlockStats& stats = stats_[settings.num_witnesses];
  stats = BlockStats(params.stats.centroid.dtype, kv.num_pages(), kv.num_kv_heads(), kv.head_dim(),
                     kv.page_size, settings.num_witnesses);
  compute_block_stats(kv, 0, 0, params.batch.kv_lens[0] / kv.page_size, 0, stats.view(),
                      model_->context());
  changed.stats = stats.view();
  return changed;
}

void Diagnoser::selected(int64_t layer, const SelectorParams& params,
                         const BlockSelectionView& /*everything*/) {
  stats_.clear();
  SelectorSettings witness = settings_.selectors.front().settings;
  witness.method = SelectorMethod::kWitness;
  const SelectorParams with_witnesses = with_settings(params, witness);
  const SequencePlan plan = plan_sequences(params).front();
  std::vector<Sample> samples;
  for (const int64_t q_block : sampled_) {
    if (q_block < plan.first_block || q_block >= plan.end_block) continue;
    for (int64_t head = 0; head < params.q.shape[1]; ++head) {
      Sample& sample = samples.emplace_back();
      sample.layer = layer;
      sample.head = head;
      sample.q_block = q_block;
    }
  }
  parallel_for(model_->context(), static_cast<int64_t>(samples.size()), [&](int64_t task, int32_t) {
    Sample& sample = samples[static_cast<size_t>(task)];
    sample.mass = attention_mass(params, sample.head, sample.q_block);
    judge_scores(with_witnesses, &sample);
  });
  for (size_t s = 0; s < settings_.selectors.size(); ++s) {
    judge_selector(s, layer, with_settings(params, settings_.selectors[s].settings), samples);
  }
  for (const Sample& sample : samples) add(sample);
}

/// Ranks of the true top blocks under every score.
void Diagnoser::judge_scores(const SelectorParams& params, Sample* sample) const {
  SelectorParams asked = params;
  asked.settings.density = settings_.density;
  const SequencePlan plan = plan_sequences(asked).front();
  const ForcedBlocks forced = forced_blocks(asked.settings, plan, sample->q_block);
  sample->free_begin = forced.sink_end;
  sample->free_end = std::max(forced.sink_end, forced.local_begin);
  const auto free = [&](const std::vector<double>& of_blocks) {
    return std::vector<double>(of_blocks.begin() + sample->free_begin,
                               of_blocks.begin() + sample->free_end);
  };
  sample->free_mass = free(sample->mass.blocks);
  const int64_t num_free = sample->free_end - sample->free_begin;
  if (num_free < kLeastFree) return;
  sample->budget = std::clamp<int64_t>(
      plan.budget[static_cast<size_t>(sample->q_block)] - forced.count(sample->q_block), 0,
      num_free);

  const auto num_top =
      std::max<int64_t>(1, std::llround(settings_.top_share * static_cast<double>(num_free)));
  const std::vector<int64_t> mass_rank = ranks_of(sample->free_mass);
  std::vector<double> radius;
  const TensorView& radii = params.stats.radius;
  const int64_t kv_head = sample->head / (params.q.shape[1] / params.kv.num_kv_heads());
  for (int64_t b = sample->free_begin; b < sample->free_end; ++b) {
    radius.push_back(static_cast<double>(
        radii.as<float>()[stats_entry(params, 0, b) * radii.stride[0] + kv_head]));
  }
  const std::vector<int64_t> radius_rank = ranks_of(radius);
  for (int64_t b = 0; b < num_free; ++b) {
    const auto at = static_cast<size_t>(b);
    if (mass_rank[at] >= num_top) continue;
    sample->top.push_back(b);
    // Quintile 4 has the largest radii.
    sample->top_quintile.push_back(
        kNumQuintiles - 1 -
        static_cast<size_t>(radius_rank[at] * static_cast<int64_t>(kNumQuintiles) / num_free));
  }
  for (size_t s = 0; s < kScores.size(); ++s) {
    asked.settings.method = kScores[s].first;
    const ReferenceScores scores = reference_scores(asked, plan, sample->head, sample->q_block);
    const std::vector<int64_t> rank = ranks_of(free(scores.branches.back()));
    if (s == kCentroid) sample->centroid_rank = rank;
    for (const int64_t b : sample->top) sample->top_rank[s].push_back(rank[static_cast<size_t>(b)]);
  }
}

/// Adds what a selector keeps, everywhere for its density and where samples are for its recall.
void Diagnoser::judge_selector(size_t selector, int64_t layer, const SelectorParams& params,
                               const std::vector<Sample>& samples) {
  BlockSelection selection;
  select_blocks(params, model_->context(), selection);
  const int64_t first_block =
      (params.batch.kv_lens[0] - params.batch.q_offsets[1]) / selection.block_size;
  SelectorDiagnosis& sums = sums_.selectors[selector];
  for (int64_t head = 0; head < selection.num_q_heads; ++head) {
    const auto at = static_cast<size_t>(layer * selection.num_q_heads + head);
    for (int64_t i = 0; i < selection.num_q_blocks; ++i) {
      sums.kept[at] += selection.len[static_cast<size_t>(head * selection.num_q_blocks + i)];
      sums.causal[at] += first_block + i + 1;
    }
  }
  for (const Sample& sample : samples) {
    const auto list =
        static_cast<size_t>(sample.head * selection.num_q_blocks + sample.q_block - first_block);
    const int32_t* blocks = selection.blocks.data() + selection.begin[list];
    double recall = 0, free_recall = 0;
    size_t num_free = 0;
    for (int32_t i = 0; i < selection.len[list]; ++i) {
      const double mass = sample.mass.blocks[static_cast<size_t>(blocks[i])];
      recall += mass;
      if (blocks[i] < sample.free_begin || blocks[i] >= sample.free_end) continue;
      free_recall += mass;
      ++num_free;
    }
    sums.recall += recall;
    ++num_lists_[selector];
    const double all_free = std::accumulate(sample.free_mass.begin(), sample.free_mass.end(), 0.0);
    if (!(all_free > 0)) continue;
    sums.free_recall += free_recall / all_free;
    sums.oracle_free_recall += sum_of_largest(sample.free_mass, num_free) / all_free;
    ++num_free_lists_[selector];
  }
}

void Diagnoser::add(const Sample& sample) {
  ++sums_.num_query_blocks;
  for (size_t i = 0; i < sample.top.size(); ++i) {
    const size_t quintile = sample.top_quintile[i];
    ++sums_.num_top;
    sums_.top_by_radius[quintile] += 1;
    for (size_t s = 0; s < kScores.size(); ++s) {
      const int64_t rank = sample.top_rank[s][i];
      num_in_budget_[s] += rank < sample.budget ? 1 : 0;
      ranks_[s][quintile].push_back(static_cast<float>(rank) /
                                    static_cast<float>(sample.free_mass.size()));
    }
  }
  if (sample.budget == 0) return;  // where nothing could be chosen, nothing was missed
  for (size_t i = 0; i < sample.centroid_rank.size(); ++i) {
    const int64_t block = sample.free_begin + static_cast<int64_t>(i);
    const BlockPeak& peak = sample.mass.peaks[static_cast<size_t>(block)];
    if (peak.mass < kLookedAt) continue;
    ++sums_.num_looked_at;
    if (peak.key_weight < peak.mass / 2) continue;
    sums_.single_token_share += 1;
    if (sample.centroid_rank[i] < sample.budget) continue;
    sums_.diluted_share += 1;
    DilutionCase found;
    found.prompt = sums_.num_prompts;
    found.layer = sample.layer;
    found.head = sample.head;
    found.q_block = sample.q_block;
    found.block = block;
    found.position = peak.key;
    found.block_mass = static_cast<double>(peak.mass);
    found.token_share = static_cast<double>(peak.key_weight / peak.mass);
    found.centroid_rank = sample.centroid_rank[i];
    found.budget = sample.budget;
    const auto place = std::upper_bound(
        sums_.cases.begin(), sums_.cases.end(), found,
        [](const DilutionCase& a, const DilutionCase& b) { return a.block_mass > b.block_mass; });
    sums_.cases.insert(place, found);
    if (sums_.cases.size() > settings_.num_cases) sums_.cases.pop_back();
  }
}

Diagnosis Diagnoser::result() const {
  Diagnosis result = sums_;
  for (size_t s = 0; s < result.selectors.size(); ++s) {
    SelectorDiagnosis& selector = result.selectors[s];
    selector.recall = quotient(selector.recall, num_lists_[s]);
    selector.free_recall = quotient(selector.free_recall, num_free_lists_[s]);
    selector.oracle_free_recall = quotient(selector.oracle_free_recall, num_free_lists_[s]);
  }
  for (size_t s = 0; s < kScores.size(); ++s) {
    ScoreDiagnosis& score = result.scores[s];
    score.in_budget = quotient(static_cast<double>(num_in_budget_[s]), result.num_top);
    std::vector<float> all;
    for (size_t quintile = 0; quintile < kNumQuintiles; ++quintile) {
      const std::vector<float>& ranks = ranks_[s][quintile];
      score.median_rank_by_radius[quintile] = median(ranks);
      all.insert(all.end(), ranks.begin(), ranks.end());
    }
    score.median_rank = median(std::move(all));
  }
  for (double& share : result.top_by_radius) share = quotient(share, result.num_top);
  result.single_token_share = quotient(result.single_token_share, result.num_looked_at);
  result.diluted_share = quotient(result.diluted_share, result.num_looked_at);
  return result;
}

}  // namespace fovea::quality
