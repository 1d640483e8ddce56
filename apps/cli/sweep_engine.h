// A sweep of our own engine: attention against attention.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/sweep.h"
#include "fovea/engine/session.h"

namespace fovea::cli {

/// Runs `plan` on random tokens, one request at a time, and adds each timed one to `record`. Throws
/// Cancelled when `cancel` is raised, kInvalidArgument before any work when a length and its answer
/// do not fit in the model's context, kOutOfMemory as Session does.
void sweep_engine(const std::shared_ptr<const Model>& model, const SweepPlan& plan,
                  const std::vector<std::string>& attention_names,
                  const std::vector<AttentionSettings>& attentions, const std::atomic<bool>* cancel,
                  const SweepProgress& progress, SweepRecord* record);

/// KV cache bytes by which one more token of context lengthens a decode step's reads: those of the
/// layers that see the whole context, in the type that `attention` keeps them in, whole bytes.
int64_t growing_kv_bytes_per_token(const Model& model, const AttentionSettings& attention);

}  // namespace fovea::cli
