// What a session does, piece by piece, for whoever wants to record it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace fovea {

struct BlockSelectionView;  // attention/block_selection.h
struct SelectorParams;      // selector/block_selector.h

/// The pieces between whose borders the engine reads the clock, in the order of a token's way.
enum class StepOp {
  kBookkeeping,  // memory, pages, prefix lookup
  kRopeTable,
  kOutputMatmul,  // of attention; from here to kResidualAdd, the end of a layer
  kMlpNorm,       // with the addition before it
  kGateUpMatmul,
  kActivation,
  kDownMatmul,
  kExperts,  // of a mixture, all there is from router to residual
  kResidualAdd,
  kEmbedding,  // from here to kKvWrite, the beginning of a layer
  kInputNorm,
  kQkvMatmul,
  kKvWrite,  // biases, norms of heads, RoPE, and k and v into pages
  kBlockStatistics,
  kSelection,
  kDenseAttention,
  kSparseAttention,
  kDecodeAttention,
  kOutputNorm,
  kLogitsMatmul,
  kSampling,
};
inline constexpr int kNumStepOps = 21;

/// A name such as "qkv_matmul".
std::string_view step_op_name(StepOp op);

using StepClock = std::chrono::steady_clock;

inline double seconds_since(StepClock::time_point start) {
  return std::chrono::duration<double>(StepClock::now() - start).count();
}

/// One piece of a step. Where threads take rows slab by slab through several pieces, these follow
/// each other here as if all rows went through one piece at a time: each gets its share of the
/// time that passed.
struct OpTiming {
  StepOp op = StepOp::kBookkeeping;
  int64_t layer = -1;  // -1: of no layer
  StepClock::time_point start;
  double seconds = 0;
};

struct StepStart {
  bool is_decode = false;
  int64_t num_tokens = 0;  // computed in this step
  int64_t position = 0;    // of the first of them in the sequence
  StepClock::time_point start;
};

/// Is told of steps and their pieces in the thread that runs the session, as they end. Must not
/// throw, and what it costs is the session's loss.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// What is recorded from here on belongs to this step.
  virtual void begin_step(const StepStart& step) = 0;
  virtual void record(const OpTiming& timing) = 0;
  /// Of each layer that selects: its queries, keys and statistics, in memory of the model's device,
  /// and the lists made of them. All of it is valid until this returns.
  virtual void selected(int64_t /*layer*/, const SelectorParams& /*params*/,
                        const BlockSelectionView& /*selection*/) {}
};

}  // namespace fovea
