#include "apps/cli/sweep_engine.h"

#include <chrono>
#include <random>

#include "fovea/base/error.h"
#include "fovea/engine/page_key.h"
#include "fovea/model_io/model_config.h"
#include "fovea/ops/sampling.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<int32_t> random_prompt(const Model& model, int64_t length, std::mt19937_64& random) {
  std::uniform_int_distribution<int32_t> any(0,
                                             static_cast<int32_t>(model.config().vocab_size) - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& token : tokens) token = any(random);
  if (model.tokenizer().add_bos() && model.config().bos_id) tokens.front() = *model.config().bos_id;
  return tokens;
}

SweepSample run_request(Session& session, const std::vector<int32_t>& prompt, int64_t decode_tokens,
                        const std::atomic<bool>* cancel) {
  SweepSample sample;
  PrefillOptions options;
  options.cancel = cancel;
  session.reset();
  auto start = Clock::now();
  int32_t token = argmax(session.prefill(prompt, options));
  sample.ttft_ms = milliseconds_since(start);
  sample.prompt_tokens = static_cast<int64_t>(prompt.size());
  sample.cached_tokens = session.report().num_cached_tokens;
  sample.density = session.report().density();
  Sampler greedy({});
  for (int64_t i = 0; i < decode_tokens; ++i) {
    if (cancel != nullptr && cancel->load()) throw Cancelled();
    start = Clock::now();
    token = session.decode(token, greedy);
    sample.itl_ms.push_back(milliseconds_since(start));
  }
  return sample;
}

}  // namespace

void sweep_engine(const std::shared_ptr<const Model>& model, const SweepPlan& plan,
                  const std::vector<std::string>& attention_names,
                  const std::vector<AttentionSettings>& attentions, const std::atomic<bool>* cancel,
                  const SweepProgress& progress, SweepRecord* record) {
  const int64_t context_length = model->config().context_length;
  check_argument(plan.lengths.back() <= context_length - plan.decode_tokens,
                 "a prompt of {} tokens and {} decoded after it do not fit in this model's context "
                 "of {}: give shorter --lengths or fewer --decode-tokens",
                 plan.lengths.back(), plan.decode_tokens, context_length);
  std::mt19937_64 random(plan.seed);
  int64_t prepared_length = 0;
  std::vector<Session> sessions;  // of one length: caches of the longest would fill the memory
  run_sweep(plan, attention_names, progress, [&](int64_t length, size_t attention, bool timed) {
    if (length != prepared_length) {
      sessions.clear();
      for (const AttentionSettings& settings : attentions) {
        SessionOptions options;
        options.attention = settings;
        options.max_len = length + plan.decode_tokens;
        sessions.emplace_back(model, options);
      }
      prepared_length = length;
    }
    const std::vector<int32_t> prompt = random_prompt(*model, length, random);
    SweepSample sample = run_request(sessions[attention], prompt, plan.decode_tokens, cancel);
    if (timed) record->add(length, attention_names[attention], std::move(sample));
  });
}

int64_t growing_kv_bytes_per_token(const Model& model, const AttentionSettings& attention) {
  int64_t num_growing = 0;
  for (int64_t layer = 0; layer < model.config().num_layers; ++layer) {
    num_growing += model.config().is_local(layer) ? 0 : 1;
  }
  const KvCacheShape shape = kv_cache_shape(model, attention, model.config().context_length);
  return kv_page_bytes(shape) / shape.num_layers * num_growing / shape.page_size;
}

}  // namespace fovea::cli
