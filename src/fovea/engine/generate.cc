#include "fovea/engine/generate.h"

#include <algorithm>
#include <chrono>

#include "fovea/base/error.h"
#include "fovea/engine/step_observer.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea {
namespace {

double ms_between(std::chrono::steady_clock::time_point from,
                  std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

bool ends_text(const Model& model, int32_t token) {
  const std::vector<int32_t>& ids = model.config().eos_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end() ||
         (token < model.tokenizer().vocab_size() && model.tokenizer().is_eos(token));
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEos:
      return "eos";
    case StopReason::kMaxTokens:
      return "max_tokens";
    case StopReason::kContextFull:
      return "context_full";
    case StopReason::kCallback:
      return "callback";
    case StopReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

double GenerateResult::decode_tokens_per_s() const {
  double total_ms = 0;
  for (const double gap : itl_ms) total_ms += gap;
  return total_ms > 0 ? 1e3 * static_cast<double>(itl_ms.size()) / total_ms : 0.0;
}

GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options) {
  check_argument(options.max_new_tokens >= 0, "max_new_tokens must not be negative, got {}",
                 options.max_new_tokens);
  const Model& model = session.model();
  const int32_t vocab_size = model.tokenizer().vocab_size();
  Sampler sampler(options.sampling);
  StreamDecoder decoder(model.tokenizer());
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());

  const auto say = [&](const std::string& text) {
    result.text += text;
    return text.empty() || !options.on_text || options.on_text(text);
  };

  // Later ones are drawn within their steps.
  const auto draw_first = [&](std::span<const float> logits) {
    const auto sampling_start = StepClock::now();
    const int32_t token = sampler.sample(logits);
    if (session.observer() != nullptr) {
      session.observer()->record(
          {StepOp::kSampling, -1, sampling_start, seconds_since(sampling_start)});
    }
    return token;
  };

  const auto start = StepClock::now();
  PrefillOptions prefill = options.prefill;
  prefill.num_logit_rows = 1;
  const std::span<const float> logits = session.prefill(prompt, prefill);
  result.prefill = session.report();

  auto before = start;
  int32_t token = 0;
  result.stop = StopReason::kMaxTokens;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    token = i == 0 ? draw_first(logits) : session.decode(token, sampler);
    const auto now = StepClock::now();
    if (i == 0) {
      result.ttft_ms = ms_between(start, now);
    } else {
      result.itl_ms.push_back(ms_between(before, now));
    }
    before = now;
    if (options.stop_at_eos && ends_text(model, token)) {
      result.stop = StopReason::kEos;
      break;
    }
    result.tokens.push_back(token);
    // An embedding may have more rows than the tokenizer has tokens: those say nothing.
    if (token < vocab_size && !say(decoder.push(token))) {
      result.stop = StopReason::kCallback;
      break;
    }
    if (prefill.cancel != nullptr && prefill.cancel->load()) {
      result.stop = StopReason::kCancelled;
      break;
    }
    if (i + 1 == options.max_new_tokens) break;
    if (session.room() == 0) {
      result.stop = StopReason::kContextFull;
      break;
    }
  }
  if (options.max_new_tokens == 0) {
    result.ttft_ms = ms_between(start, StepClock::now());
  }
  say(decoder.flush());
  result.decode_density = session.decode_density();
  return result;
}

}  // namespace fovea
