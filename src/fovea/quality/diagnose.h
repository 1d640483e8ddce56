// Why a selector misses: its blocks and its scores beside the attention's true mass, layer by
// layer.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/engine/step_observer.h"
#include "fovea/quality/attention_mass.h"
#include "fovea/selector/block_selector.h"

namespace fovea::quality {

/// A row that gives a block this share of its attention looks at it.
constexpr float kLookedAt = 0.1f;

struct NamedSelector {
  std::string name;
  SelectorSettings settings;
};

struct DiagnoseSettings {
  std::vector<NamedSelector> selectors;
  /// Blocks that a score's ranks are held against: the budget of this density.
  float density = 0.0534f;
  double top_share = 0.05;   // of the blocks that are not forced: the "true top blocks"
  int64_t num_q_blocks = 6;  // looked at per prompt and head, spread over its last three quarters
  size_t num_cases = 20;     // of mean dilution that are kept, those with the most mass
};

/// How much of the attention's mass the blocks of one selector hold.
struct SelectorDiagnosis {
  std::string name;
  double recall = 0;                  // share of all mass, forced blocks' included; mean
  double free_recall = 0;             // share of the mass outside the forced blocks; mean
  double oracle_free_recall = 0;      // the same for the best blocks, as many of them; mean
  std::vector<int64_t> kept, causal;  // pairs of each [layer, head], over whole prompts

  double density() const;
  double head_density(int64_t layer, int64_t head, int64_t num_heads) const;  // NaN: not sparse
};

/// Where one score ranks the true top blocks.
struct ScoreDiagnosis {
  std::string name;
  double in_budget = 0;    // share of them among the best-ranked blocks that the density allows
  double median_rank = 0;  // 0 (first) ... 1 (last) of the blocks that are not forced
  std::array<double, 5> median_rank_by_radius = {};  // by quintile of the radius; NaN where none
};

/// A block to which some row gives kLookedAt of its attention or more, mostly to one token, and
/// which the centroid ranks outside the budget.
struct DilutionCase {
  int64_t prompt = 0, layer = 0, head = 0, q_block = 0, block = 0;
  int64_t position = 0;                   // of the token
  double block_mass = 0;                  // share of the attention of the row that looks hardest
  double token_share = 0;                 // of the block's mass
  int64_t centroid_rank = 0, budget = 0;  // blocks; rank 0 is the best
};

struct Diagnosis {
  int64_t num_prompts = 0, num_query_blocks = 0;  // (layer, head, query block) triples looked at
  int64_t num_layers = 0, num_q_heads = 0;
  std::vector<SelectorDiagnosis> selectors;
  std::vector<ScoreDiagnosis> scores;        // centroid, rescue (uplifted), bound, witness
  std::array<double, 5> top_by_radius = {};  // share of the top blocks in each radius quintile
  int64_t num_top = 0;                       // top blocks seen
  int64_t num_looked_at = 0;                 // blocks not forced that some row looks at
  double single_token_share = 0;    // of them, those with half of the row's mass in one token
  double diluted_share = 0;         // of them, those and ranked outside the budget by centroid
  std::vector<DilutionCase> cases;  // most mass first
};

/// Reads prompts with every block kept, so that layers see what dense attention shows them, and
/// judges the selectors by each layer's queries and keys as it goes. On the CPU only.
class Diagnoser : private StepObserver {
 public:
  /// Throws kInvalidArgument on settings that break a rule or blocks of different sizes,
  /// kUnsupported for a model that is not on the CPU.
  Diagnoser(std::shared_ptr<const Model> model, const DiagnoseSettings& settings);

  /// Throws as Session::prefill does.
  void read(std::span<const int32_t> prompt, const PrefillOptions& options);
  /// Of all that was read.
  Diagnosis result() const;

 private:
  struct Sample;  // what one (layer, head, query block) showed
  void begin_step(const StepStart&) override {}
  void record(const OpTiming&) override {}
  void selected(int64_t layer, const SelectorParams& params,
                const BlockSelectionView& selection) override;
  SelectorParams with_settings(const SelectorParams& params, const SelectorSettings& settings);
  void judge_selector(size_t selector, int64_t layer, const SelectorParams& params,
                      const std::vector<Sample>& samples);
  void judge_scores(const SelectorParams& params, Sample* sample) const;
  void add(const Sample& sample);

  std::shared_ptr<const Model> model_;
  DiagnoseSettings settings_;
  std::vector<int64_t> sampled_;         // query blocks of the prompt that is being read
  std::map<int64_t, BlockStats> stats_;  // of this layer, by the number of witnesses

  Diagnosis sums_;                  // shares as sums until result()
  std::vector<int64_t> num_lists_;  // that a selector's recalls are sums over
  std::vector<int64_t> num_free_lists_;
  std::array<std::array<std::vector<float>, 5>, 4> ranks_;  // [score][radius quintile]
  std::array<int64_t, 4> num_in_budget_ = {};
};

}  // namespace fovea::quality
