// The contract of block selection: settings, inputs, and who can compute it. See docs/selection.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/block_selection.h"
#include "fovea/attention/kv_view.h"
#include "fovea/base/context.h"
#include "fovea/selector/block_stats.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

enum class SelectorMethod {
  kAll,
  kStreaming,
  kCentroid,
  kRescue,
  kWitness,
  kBound,
  kOracle,
  // From here on the lab's, see is_lab_method().
  kMinMax,
  kAntidiagonal,
  kVerticalSlash,
  kQueryAware,
  kSelfSimilar,
  kNearest,
  kMass,
  kPeak,
};

/// Over which blocks a quantile of the radii is taken.
enum class QuantileMode {
  kCausal,  // the complete blocks before the query block: invariant to chunks, batch and prefix
            // cache
  kPrompt,  // all complete blocks written so far, as in the paper; depends on the chunk, for
            // replication only, and needs the statistics of every complete block
};

/// How scores of a query block's rows become one score of a KV block.
enum class Aggregation {
  kSum,           // sum over rows of exp(logit - m), m the maximum over all rows and blocks
  kMax,           // max over rows of the row-normalised probability
  kMaxOverMeans,  // the same for all but `witness`, whose rows it normalises by the means of the
                  // rest alone
};

/// Which keys of a block are its witnesses. Each is the farthest of those left; ties go to the
/// earlier key.
enum class WitnessChoice {
  kSpread,  // from the centroid and all witnesses so far: what pages keep
  kFar,     // from the centroid
  kNorm,    // as kSpread, but by k.(k - n) / ||k||: how much a query that points at key k misses
            // when n stands for it
};

struct SelectorSettings {
  SelectorMethod method = SelectorMethod::kRescue;
  int64_t block_size = 128;

  // Thresholds: keep a block whose score reaches alpha times the best score.
  float alpha_base =
      0.22f;  // centroid branch, and the only one of `centroid`, `bound`, `witness`, `oracle`
  float alpha_rescue = 0.18f;  // rescue branch
  float quantile_low = 0.5f;   // radius at which the uplift starts
  float quantile_high = 0.9f;  // radius at which it is full
  QuantileMode quantiles = QuantileMode::kCausal;
  float uplift_clamp = 0;          // 0: none; else radii above this quantile count as the quantile
  bool forced_in_maximum = false;  // whether forced blocks take part in the best score

  /// 0: thresholds. In (0, 1]: budget mode, keep the best blocks so that this share of causal pairs
  /// is kept, forced ones included. `all` and `streaming` have no scores and ignore it.
  float density = 0;
  float rescue_share = 0.5f;  // of the unforced budget that the rescue branch gets

  // Forced blocks.
  int64_t sink_blocks = 1;
  int64_t local_blocks = 2;       // the last ones up to and including the diagonal, at least 1
  int64_t dense_tail_blocks = 0;  // query blocks at the prompt's end that read everything
  int64_t min_sparse_len = 0;     // sequences with fewer keys are dense

  // streaming
  int64_t streaming_sink_tokens = 128;
  int64_t streaming_local_tokens = 1024;

  // witness, nearest, mass, peak
  int64_t num_witnesses = 4;  // 1 ... 8
  // Witnesses that pages do not keep: the lab computes them from the keys at every call.
  WitnessChoice witness_choice = WitnessChoice::kSpread;
  bool f8_witnesses = false;  // rounded to f8e4m3, and the mean of the rest: one scale for a block
  float calm_quantile = 0;  // blocks whose radius is under this quantile of those before them have
                            // no witness; 0: all have
  /// witness with aggregation sum: blocks that their radius rules out are not looked at. The lists
  /// stay the same.
  bool skip_by_bound = false;

  Aggregation aggregation = Aggregation::kSum;  // where a threshold is a share of the best score
  /// The q heads of a KV head share one list, by the sum (or maximum) of their scores. Not for
  /// methods of the lab.
  bool lists_per_kv_head = false;

  // What the lab's methods keep without a budget.
  /// Share of the estimated attention that `antidiagonal`, `query_aware`, `self_similar` and `mass`
  /// keep; 0: the method's own, default_coverage().
  float coverage = 0;
  int64_t antidiagonal_stride = 8;  // tokens of a group; block_size must be a multiple
  int64_t vertical_tokens = 1000;   // vertical_slash: keys that draw a vertical line
  int64_t slash_tokens = 6096;      // vertical_slash: distances that draw a slash
  float most_divergence = 0.1f;     // query_aware: of means from the truth, before it keeps lines
  float least_similarity = 0.6f;    // self_similar: mean cosine under which a mean does not speak
  float nearest_gap = 0;            // nearest: nats below a query's best row
  float mass_power = 1;             // mass: that probabilities are raised to before they are added
  float least_peak = 0.3f;          // peak: probability that some query must give a block
};

/// What a method keeps unless told: 0, thresholds as its paper has them, or for `witness`, whose
/// scores they do not suit, a budget (docs/selection.md shows both).
float default_density(SelectorMethod method);
/// SelectorSettings::coverage of a method unless told; 0 for those without one.
float default_coverage(SelectorMethod method);
/// Whether a selection depends on where the call's queries end, so that another chunk size or a
/// longer prompt gives other lists: `vertical_slash` and `query_aware`, which judge heads by the
/// last queries, and quantiles over the prompt.
bool depends_on_chunk(const SelectorSettings& settings);
/// Whether a method judges blocks by the witnesses of their pages.
bool reads_witnesses(SelectorMethod method);

/// Whether a call judges by other witnesses than those that pages keep.
bool varies_witnesses(const SelectorSettings& settings);
/// Whether SelectorSettings::skip_by_bound applies.
inline bool skips_by_bound(const SelectorSettings& settings) {
  return settings.method == SelectorMethod::kWitness && settings.skip_by_bound;
}

/// Names as on the command line, for example "rescue", "spread" and "sum".
std::string_view witness_choice_name(WitnessChoice choice);
std::string_view aggregation_name(Aggregation aggregation);
std::string_view selector_method_name(SelectorMethod method);
/// Whether `method` is one that is measured, not yet served: on the CPU only, computed from the
/// keys themselves where pages keep too little (lab/lab_selector.h).
inline bool is_lab_method(SelectorMethod method) { return method >= SelectorMethod::kMinMax; }
/// The same for settings: served methods have variants that the lab computes.
bool is_lab(const SelectorSettings& settings);
/// All names, in the order of docs/selection.md.
std::vector<std::string_view> selector_method_names();
/// Throws kInvalidArgument listing the known names.
SelectorMethod parse_selector_method(std::string_view name);

/// One call of selection, for the query rows of a chunk.
///
/// Every sequence's first query position kv_len - q_len must be a multiple of block_size, so that
/// no query block is split between two calls: with causal quantiles the lists then depend on
/// nothing but the query block and the pages before it, bit for bit. Queries that stay in one block
/// may start anywhere, as those of decode do: they are judged by themselves.
struct SelectorParams {
  TensorView q;  // [total_q, num_q_heads, head_dim], after RoPE
  KvView kv;  // keys are read by `oracle` and the lab only; gives types, heads, page table to all
  RaggedBatch batch;
  BlockStatsView stats;                    // of the complete blocks before the last query block
  const int64_t* block_offsets = nullptr;  // contiguous K/V only, see Periphery
  float softmax_scale = 0;                 // 0 means 1 / sqrt(head_dim)
  /// Per sequence, the whole prompt's length when more chunks follow; null means kv_lens. Places
  /// the dense tail.
  const int64_t* prompt_lens = nullptr;
  SelectorSettings settings;
};

/// One way of computing selections.
class SelectorBackend {
 public:
  virtual ~SelectorBackend() = default;
  virtual std::string_view name() const = 0;
  virtual std::string why_unsupported(const SelectorParams& params,
                                      const Context& context) const = 0;
  /// Replaces `selection`. Its vectors keep their capacity between calls.
  virtual void run(const SelectorParams& params, const Context& context,
                   BlockSelection& selection) const = 0;
};

/// All backends of this build, fastest first, the reference last.
std::span<const SelectorBackend* const> selector_backends();

/// Throws kInvalidArgument naming the first rule that `settings` breaks, in the order of its
/// members.
void check_selector_settings(const SelectorSettings& settings);
/// The same for a whole call; includes check_selector_settings.
void check_selector_params(const SelectorParams& params, const Context& context);

/// Selects with the first backend that can, or with the one FOVEA_SELECTOR_BACKEND names.
/// Throws kInvalidArgument as check_selector_params does, kUnsupported listing every backend's
/// reason.
void select_blocks(const SelectorParams& params, const Context& context, BlockSelection& selection);

/// Kept share of the causal pairs of each q head, 0 ... 1.
std::vector<double> density_per_head(const BlockSelection& selection);

}  // namespace fovea
