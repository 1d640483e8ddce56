#include "fovea/engine/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/layer_budgets.h"
#include "fovea/engine/memory_plan.h"
#include "fovea/engine/page_key.h"
#include "fovea/engine/step_observer.h"
#include "fovea/engine/transformer.h"
#include "fovea/model_io/model_config.h"

namespace fovea {
namespace {

/// CPU: measured on two AMX cores, SmolLM2 and needle_7m: 1024 ... 8192 differ by under 3 %; larger
/// chunks only take memory. GPU: experts of a mixture need many rows each.
int64_t default_chunk_size(Device device) { return device.type == DeviceType::kCpu ? 4096 : 16384; }

/// Below this many tokens rescue and dense cost the same within the noise on two AMX cores: most of
/// a row's few blocks are forced, and selecting is not free.
constexpr int64_t kBreakEvenLen = 2048;

constexpr int64_t kDensePageSize = 128;

void throw_if_cancelled(const PrefillOptions& options) {
  if (options.cancel != nullptr && options.cancel->load()) throw Cancelled();
}

}  // namespace

double PrefillReport::density() const { return kept_share(kept_pairs, causal_pairs); }

double PrefillReport::forced_share() const {
  return kept_pairs > 0 ? static_cast<double>(forced_pairs) / static_cast<double>(kept_pairs) : 0.0;
}

struct Session::Impl {
  Impl(std::shared_ptr<const Model> model_in, const SessionOptions& options_in);
  ~Impl() { reset(); }

  const ModelConfig& config() const { return model->config(); }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t page_size() const { return cache->shape().page_size; }
  void reset() { truncate(0); }
  void truncate(int64_t new_length);
  void check_tokens(std::span<const int32_t> more) const;
  void grow_pages(int64_t new_length);
  /// What the buffers of steps of `rows` take, and with them the pages of `cache_shape`.
  MemoryPlan plan(const KvCacheShape& cache_shape, int64_t rows) const;
  /// Throws unless the prompt's pages and buffers fit, where they are not there yet.
  void check_prompt_memory(int64_t new_length, int64_t rows) const;
  /// Runs a step that appends `more`: the text grows by it, pages that selected have statistics.
  void forward(ForwardStep step, bool is_decode, StepClock::time_point start);
  int64_t reuse_prefix(std::span<const int32_t> prompt, int64_t least_new, bool sparse);
  void publish_pages(bool sparse);
  int64_t least_sparse_len() const;
  bool decide_sparse(int64_t prompt_len);
  /// Reads `prompt`; after each step calls `after_step(first_row_in_prompt, num_rows)`.
  void read(std::span<const int32_t> prompt, const PrefillOptions& prefill, int64_t least_new,
            const std::function<void(int64_t, int64_t)>& after_step);
  void finish_report(int64_t num_tokens, int64_t num_cached, double total_s);
  /// Appends one token, and draws the next where a draw is given, else returns -1.
  int32_t decode(int32_t token, const std::optional<Draw>& draw);
  /// Tells the observer of work since `start` that is not the transformer's.
  void record_bookkeeping(StepClock::time_point start) const;

  std::shared_ptr<const Model> model;
  SessionOptions options;
  std::optional<SelectorSettings> selector;
  int64_t max_len = 0;
  int64_t chunk_size = 0;
  std::shared_ptr<KvCache> cache;
  std::unique_ptr<Transformer> transformer;
  std::vector<int32_t> tokens;
  std::vector<int32_t> page_table;
  int64_t num_stats_pages = 0;  // pages from the start whose statistics are computed
  std::vector<float> logits;
  bool has_decode_logits = false;  // the transformer has those of the last decode()
  PrefillReport report;
};

Session::Impl::Impl(std::shared_ptr<const Model> model_in, const SessionOptions& options_in)
    : model(std::move(model_in)), options(options_in), selector(options_in.attention.selector) {
  check_argument(model != nullptr, "model must not be null");
  if (selector) {
    check_selector_settings(*selector);
    check_layer_budgets(options.attention.layer_budgets, *selector, config().num_layers);
    if (selector->method == SelectorMethod::kAll) selector.reset();
  }
  check_argument(options.attention.selector.has_value() || !options.attention.periphery,
                 "periphery needs a selector");
  check_argument(options.attention.min_sparse_len >= -1,
                 "min_sparse_len must be at least -1, got {}", options.attention.min_sparse_len);
  check_argument(options.attention.value_share > 0 && options.attention.value_share <= 1,
                 "value_share must be in (0, 1], got {}", options.attention.value_share);
  if (options.attention.value_share < 1 && model->context().device.type != DeviceType::kCpu) {
    fail(ErrorCode::kUnsupported, "a value_share under 1 is for the CPU; on a GPU leave it at 1");
  }
  check_argument(options.chunk_size >= 0, "chunk_size must not be negative, got {}",
                 options.chunk_size);
  check_argument(options.max_len >= 0 && options.max_len <= config().context_length,
                 "max_len must be in [0, {}], the model's context length, got {}",
                 config().context_length, options.max_len);
  const int64_t block_size = selector ? selector->block_size : kDensePageSize;
  max_len = options.max_len > 0 ? options.max_len : config().context_length;
  const int64_t asked =
      options.chunk_size > 0 ? options.chunk_size : default_chunk_size(model->context().device);
  chunk_size = ceil_div(std::min(asked, max_len), block_size) * block_size;

  KvCacheShape shape = kv_cache_shape(*model, options.attention, max_len);
  check_argument(!shape.codes || is_code(*shape.codes), "kv_codes must be f8e4m3 or i8, got {}",
                 dtype_name(shape.element()));
  if (shape.codes && shape.device.type != DeviceType::kCpu &&
      (*shape.codes != DType::kF8E4M3 || shape.head_dim != 128 || block_size % 128 != 0)) {
    fail(ErrorCode::kUnsupported,
         "K and V as codes on a GPU must be f8e4m3 and need head_dim 128 (the model has {}) and "
         "blocks of a multiple of 128 (got {})",
         shape.head_dim, block_size);
  }
  if (options.cache != nullptr) {
    cache = options.cache;
    const KvCacheShape& given = cache->shape();
    check_argument(given.device == shape.device && given.dtype == shape.dtype &&
                       given.num_layers == shape.num_layers &&
                       given.num_kv_heads == shape.num_kv_heads && given.head_dim == shape.head_dim,
                   "the cache is of another model");
    check_argument(given.element() == shape.element(), "the cache holds {}, the session wants {}",
                   dtype_name(given.element()), dtype_name(shape.element()));
    check_argument(given.page_size == block_size, "the cache has pages of {}, the selector {}",
                   given.page_size, block_size);
    check_argument(!selector || (given.with_stats && given.num_witnesses >= shape.num_witnesses),
                   "the cache lacks statistics that the selector needs");
  } else {
    if (shape.device.type != DeviceType::kCpu) {
      check_plan(plan(shape, std::min(chunk_size, max_len)),
                 fmt::format("a session of {} tokens in chunks of {}", max_len, chunk_size),
                 shape.device, options.memory_limit);
    }
    cache = std::make_shared<KvCache>(shape);
  }
}

MemoryPlan Session::Impl::plan(const KvCacheShape& cache_shape, int64_t rows) const {
  return plan_memory({.config = &config(),
                      .compute_dtype = model->compute_dtype(),
                      .weight_dtype = model->weight_dtype(),
                      .context = model->context(),
                      .cache = cache_shape,
                      .attention = options.attention,
                      .max_len = max_len,
                      .chunk_rows = rows});
}

void Session::Impl::check_prompt_memory(int64_t new_length, int64_t rows) const {
  const bool has_buffers = transformer != nullptr && transformer->max_rows() >= rows;
  KvCacheShape more = cache->shape();  // pages that take memory when they are first written
  more.num_pages = more.device.type == DeviceType::kCpu
                       ? ceil_div(new_length, page_size()) - static_cast<int64_t>(page_table.size())
                       : 0;
  MemoryPlan needed = plan(more, rows);
  if (has_buffers) needed.chunk = needed.scratch = needed.selection = 0;
  check_plan(needed, fmt::format("a prompt of {} tokens", new_length), more.device,
             options.memory_limit);
}

void Session::Impl::truncate(int64_t new_length) {
  const auto num_pages = static_cast<size_t>(ceil_div(new_length, page_size()));
  while (page_table.size() > num_pages) {
    cache->release(page_table.back());
    page_table.pop_back();
  }
  tokens.resize(static_cast<size_t>(new_length));
  num_stats_pages = std::min(num_stats_pages, new_length / page_size());
}

void Session::Impl::check_tokens(std::span<const int32_t> more) const {
  check_argument(!more.empty(), "the prompt is empty");
  for (size_t i = 0; i < more.size(); ++i) {
    check_argument(more[i] >= 0 && more[i] < config().vocab_size,
                   "token {} of the prompt is {}, the model has {}", i, more[i],
                   config().vocab_size);
  }
  const int64_t total = length() + static_cast<int64_t>(more.size());
  check_argument(total <= config().context_length,
                 "the prompt and what came before are {} tokens, the model's context length is {}",
                 total, config().context_length);
  check_argument(total <= max_len, "{} tokens do not fit, the session has room for {}", total,
                 max_len);
}

void Session::Impl::grow_pages(int64_t new_length) {
  const int64_t needed =
      ceil_div(new_length, page_size()) - static_cast<int64_t>(page_table.size());
  if (needed > cache->num_available()) {
    fail(ErrorCode::kOutOfMemory, "{} tokens need {} more pages of KV, the cache has {}",
         new_length, needed, cache->num_available());
  }
  for (int64_t i = 0; i < needed; ++i) page_table.push_back(cache->acquire());
}

void Session::Impl::forward(ForwardStep step, bool is_decode, StepClock::time_point start) {
  step.position = length();
  step.is_decode = is_decode;
  step.cache = cache.get();
  step.page_table = page_table;
  step.num_stats_pages = num_stats_pages;
  step.observer = options.observer;
  if (step.observer != nullptr) {
    const auto num_tokens = static_cast<int64_t>(step.tokens.size());
    step.observer->begin_step({is_decode, num_tokens, step.position, start});
    record_bookkeeping(start);
  }
  transformer->forward(step);
  tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
  if (step.selector != nullptr) num_stats_pages = length() / page_size();
}

int64_t Session::Impl::least_sparse_len() const {
  const int64_t asked = options.attention.min_sparse_len;
  return std::max(selector->min_sparse_len, asked >= 0 ? asked : kBreakEvenLen);
}

/// Whether the prompt is read sparsely; says why not in the report.
bool Session::Impl::decide_sparse(int64_t prompt_len) {
  if (!selector) return false;
  const int64_t least = least_sparse_len();
  if (prompt_len >= least) return true;
  report.note =
      fmt::format("read densely: {} tokens are below the break-even length {}", prompt_len, least);
  return false;
}

/// Takes pages that an earlier prefill left; returns tokens found, all of them in whole pages.
int64_t Session::Impl::reuse_prefix(std::span<const int32_t> prompt, int64_t least_new,
                                    bool sparse) {
  if (length() > 0) return 0;
  const int64_t most = static_cast<int64_t>(prompt.size()) - least_new;
  uint64_t key = root_page_key(*model, options.attention, sparse);
  int64_t found = 0;
  while (found + page_size() <= most) {
    const auto page_tokens =
        prompt.subspan(static_cast<size_t>(found), static_cast<size_t>(page_size()));
    key = next_page_key(key, page_tokens);
    const int32_t page = cache->find(key, page_tokens);
    if (page < 0) break;
    page_table.push_back(page);
    tokens.insert(tokens.end(), page_tokens.begin(), page_tokens.end());
    found += page_size();
  }
  if (sparse) num_stats_pages = found / page_size();
  return found;
}

void Session::Impl::publish_pages(bool sparse) {
  // Some methods make a page depend on what comes after it; the dense tail's pages depend on where
  // the prompt ended.
  if (sparse && depends_on_chunk(*selector)) return;
  int64_t num_pages = length() / page_size();
  if (sparse) {
    const int64_t tail = selector->dense_tail_blocks;
    num_pages = std::min(num_pages, ceil_div(length(), page_size()) - tail);
  }
  uint64_t key = root_page_key(*model, options.attention, sparse);
  for (int64_t page = 0; page < num_pages; ++page) {
    const std::span<const int32_t> page_tokens(tokens.data() + page * page_size(),
                                               static_cast<size_t>(page_size()));
    key = next_page_key(key, page_tokens);
    cache->publish(page_table[static_cast<size_t>(page)], key, page_tokens);
  }
}

void Session::Impl::read(std::span<const int32_t> prompt, const PrefillOptions& prefill,
                         int64_t least_new,
                         const std::function<void(int64_t, int64_t)>& after_step) {
  has_decode_logits = false;
  const auto start = StepClock::now();
  check_tokens(prompt);
  const int64_t start_length = length();
  const int64_t end = start_length + static_cast<int64_t>(prompt.size());
  report = {};
  const bool sparse = decide_sparse(end);
  report.sparse = sparse;
  SelectorSettings in_force = selector.value_or(SelectorSettings{});
  in_force.min_sparse_len = 0;          // decided above, for the prompt as a whole
  const bool pure = start_length == 0;  // pages of a continued text are not published
  const int64_t num_cached = reuse_prefix(prompt, least_new, sparse);
  try {
    const int64_t max_rows = std::min(chunk_size, end - length());
    check_prompt_memory(end, max_rows);
    grow_pages(end);
    if (transformer == nullptr || transformer->max_rows() < max_rows) {
      transformer = std::make_unique<Transformer>(*model, max_rows, options.attention.kv_codes);
    }
    transformer->reset_report();

    const auto total_rows = static_cast<double>(end - length());
    const int64_t first = length();
    auto step_start = start;
    while (length() < end) {
      const int64_t position = length();
      // Query blocks sit at multiples of the block size: a text continued within a block fills that
      // block first, densely.
      const int64_t into_block = position % page_size();
      const int64_t room = into_block > 0 ? page_size() - into_block : chunk_size;
      const int64_t count = std::min(room, end - position);
      const auto offset = static_cast<size_t>(position - start_length);
      ForwardStep step;
      step.tokens = prompt.subspan(offset, static_cast<size_t>(count));
      step.selector = sparse && into_block == 0 ? &in_force : nullptr;
      step.layer_budgets = options.attention.layer_budgets;
      step.periphery = options.attention.periphery;
      step.prompt_len = end;
      step.check_cancel = [&] { throw_if_cancelled(prefill); };
      step.after_layer = [&](int64_t layers_done) {
        if (!prefill.progress) return;
        const double rows_done =
            static_cast<double>(position - first) +
            static_cast<double>(count * layers_done) / static_cast<double>(config().num_layers);
        prefill.progress(rows_done / total_rows);
      };
      forward(step, false, step_start);
      after_step(static_cast<int64_t>(offset), count);
      step_start = StepClock::now();
    }
  } catch (...) {
    truncate(start_length);
    throw;
  }
  const auto publish_start = StepClock::now();
  if (pure) publish_pages(sparse);
  record_bookkeeping(publish_start);
  finish_report(static_cast<int64_t>(prompt.size()), num_cached, seconds_since(start));
}

int32_t Session::Impl::decode(int32_t token, const std::optional<Draw>& draw) {
  has_decode_logits = false;
  const auto start = StepClock::now();
  const std::span<const int32_t> more(&token, 1);
  check_tokens(more);
  const int64_t position = length();
  grow_pages(position + 1);
  if (transformer == nullptr) {
    transformer = std::make_unique<Transformer>(*model, 1, options.attention.kv_codes);
  }
  try {
    ForwardStep step;
    step.tokens = more;
    step.prompt_len = position + 1;
    step.draw = draw;
    step.value_share = options.attention.value_share;
    SelectorSettings in_force = selector.value_or(SelectorSettings{});
    if (options.attention.sparse_decode && selector && step.prompt_len >= least_sparse_len()) {
      in_force.min_sparse_len = 0;
      in_force.dense_tail_blocks = 0;  // of prompts
      step.selector = &in_force;
      step.layer_budgets = options.attention.layer_budgets;
      step.periphery = options.attention.periphery;
    }
    forward(step, true, start);
    const int32_t drawn = draw ? transformer->drawn_token() : -1;
    has_decode_logits = true;
    return drawn;
  } catch (...) {
    truncate(position);
    throw;
  }
}

void Session::Impl::record_bookkeeping(StepClock::time_point start) const {
  if (options.observer == nullptr) return;
  options.observer->record({StepOp::kBookkeeping, -1, start, seconds_since(start)});
}

void Session::Impl::finish_report(int64_t num_tokens, int64_t num_cached, double total_s) {
  const ForwardReport& done = transformer->report();
  report.num_tokens = num_tokens;
  report.num_cached_tokens = num_cached;
  report.chunk_size = chunk_size;
  report.times.total_ms = 1e3 * total_s;
  report.times.attention_ms = 1e3 * done.attention_s;
  report.times.selection_ms = 1e3 * done.selection_s;
  report.times.matmul_ms = 1e3 * done.matmul_s;
  report.times.other_ms = 1e3 * (total_s - done.attention_s - done.selection_s - done.matmul_s);
  report.work = done.work;
  report.causal_pairs = done.causal_pairs;
  report.kept_pairs = done.kept_pairs;
  report.forced_pairs = done.forced_pairs;
  report.non_finite_pairs = done.non_finite_pairs;
  report.skipped_pairs = done.skipped_pairs;
  report.head_density.resize(done.head_kept.size());
  for (size_t i = 0; i < done.head_kept.size(); ++i) {
    report.head_density[i] = kept_share(done.head_kept[i], done.head_causal[i]);
  }
  const auto num_pages = static_cast<int64_t>(page_table.size());
  report.kv_bytes = num_pages * cache->page_kv_bytes();
  report.stats_bytes = num_pages * cache->page_stats_bytes();
  report.selection_scratch_bytes = done.selection_scratch_bytes;
  if (report.sparse) report.note = done.selection_note;
  report.activation_bytes = transformer->activation_bytes();
  transformer->reset_report();  // what follows is decode
}

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

std::span<const float> Session::prefill(std::span<const int32_t> tokens,
                                        const PrefillOptions& options) {
  Impl& impl = *impl_;
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  check_argument(
      options.num_logit_rows > 0 && (tokens.empty() || options.num_logit_rows <= num_tokens),
      "num_logit_rows must be in [1, {}], the prompt's length, got {}", num_tokens,
      options.num_logit_rows);
  const int64_t vocab_size = impl.config().vocab_size;
  const int64_t first_kept = num_tokens - options.num_logit_rows;
  impl.logits.resize(static_cast<size_t>(options.num_logit_rows * vocab_size));
  impl.read(tokens, options, options.num_logit_rows, [&](int64_t first, int64_t count) {
    const int64_t from = std::max(first, first_kept);
    if (from >= first + count) return;
    impl.transformer->logits(from - first, first + count - from,
                             impl.logits.data() + (from - first_kept) * vocab_size);
  });
  return impl.logits;
}

std::span<const float> Session::decode(int32_t token) {
  impl_->decode(token, {});
  return decode_logits();
}

int32_t Session::decode(int32_t token, Sampler& sampler) {
  return impl_->decode(token, sampler.next());
}

std::span<const float> Session::decode_logits() {
  check_argument(impl_->has_decode_logits, "the last call was not a decode()");
  return impl_->transformer->decode_logits();
}

std::vector<TokenScore> Session::score(std::span<const int32_t> tokens,
                                       const PrefillOptions& options) {
  Impl& impl = *impl_;
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  std::vector<TokenScore> scores(static_cast<size_t>(std::max<int64_t>(num_tokens - 1, 0)));
  impl.read(tokens, options, num_tokens, [&](int64_t first, int64_t count) {
    const int64_t last = std::min(first + count, num_tokens - 1);
    if (first >= last) return;
    impl.transformer->score(
        tokens.subspan(static_cast<size_t>(first + 1), static_cast<size_t>(last - first)),
        scores.data() + first, [&] { throw_if_cancelled(options); });
  });
  return scores;
}

void Session::reset() { impl_->reset(); }
int64_t Session::length() const { return impl_->length(); }
int64_t Session::room() const { return impl_->max_len - impl_->length(); }
const std::vector<int32_t>& Session::tokens() const { return impl_->tokens; }
const Model& Session::model() const { return *impl_->model; }
StepObserver* Session::observer() const { return impl_->options.observer; }
const PrefillReport& Session::report() const { return impl_->report; }

double Session::decode_density() const {
  if (impl_->transformer == nullptr) return 1;
  const ForwardReport& done = impl_->transformer->report();
  return kept_share(done.kept_pairs, done.causal_pairs);
}
WorkDone Session::work() const {
  WorkDone work = impl_->report.work;
  if (impl_->transformer != nullptr) {  // what it did since that report
    const WorkDone& more = impl_->transformer->report().work;
    work.matmul_flops += more.matmul_flops;
    work.attention_flops += more.attention_flops;
    work.weight_bytes += more.weight_bytes;
    work.kv_bytes += more.kv_bytes;
  }
  return work;
}

}  // namespace fovea
