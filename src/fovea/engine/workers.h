// Who does a step's work on a device: threads that take slabs of rows on the CPU, one stream that
// takes all rows at once on a GPU. What the transformer does is the same on both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/engine/step_observer.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

class Model;         // engine/model.h
struct ModelConfig;  // model_io/model_config.h

/// Rows of a step that one worker takes through several operations.
struct Slab {
  int64_t first, count;
};

/// One worker's operations, and the buffers that its rows pass through.
class Worker {
 public:
  Worker(const Model& model, int64_t max_rows, const Context& context);
  virtual ~Worker() = default;

  /// What this worker did since the last border was `op`.
  virtual void lap(StepOp op, int64_t layer) = 0;

  int64_t size_bytes() const;

  std::unique_ptr<RowOps> ops;
  Tensor normed;     // [max_rows, model_dim], compute type: input of the next matmul
  Tensor qkv;        // product type
  Tensor added;      // product type [max_rows, model_dim]: what is normed before it is added;
                     // empty where nothing is
  Tensor gate_up;    // product type; empty with experts
  Tensor activated;  // compute type; empty with experts
  // f32, made when first needed: on the device, and of a GPU's where the CPU reads them.
  Tensor logits;
  std::shared_ptr<void> staged_logits;
};

/// All workers of a device, and the clock of a step: pieces are measured from border to border.
class Workers {
 public:
  using Body = std::function<void(const Slab&, Worker&)>;
  virtual ~Workers() = default;

  /// Where the work runs; a GPU's with a stream of its own.
  virtual const Context& context() const = 0;
  /// Attention is cut into pieces of so many FLOPs, between which a cancel flag is seen.
  virtual double flops_per_piece() const = 0;
  virtual int64_t size_bytes() const = 0;

  /// A step of `num_rows` rows begins. Without `is_timed`, borders may be passed over.
  virtual void begin_step(int64_t num_rows, bool is_timed) = 0;
  /// Takes rows [0, num_rows) through `body`, at most `max_rows` at once by one worker.
  virtual void for_each_slab(int64_t num_rows, int64_t max_rows, const Body& body) = 0;
  /// Does `body`, which asks nothing of the device but work, and for one `key` always the same.
  /// A GPU may record it and later replay the record.
  virtual void replay(const std::vector<int64_t>& key, const std::function<void()>& body) = 0;
  /// What all together did since the last border was `op`.
  virtual void lap(StepOp op, int64_t layer) = 0;
  /// Waits until a GPU is so close that what the caller then sees, a cancel flag, is recent.
  virtual void catch_up() = 0;
  /// The least layer whose input was not finite in this step, or -1. Waits for a GPU.
  virtual int64_t non_finite_layer() = 0;
  /// The step's pieces so far, in order of time; forgets them. Waits for a GPU.
  virtual std::vector<OpTiming> take_timings() = 0;

  /// For what one worker does alone.
  virtual Worker& first() = 0;
};

/// What Workers::size_bytes() will be for steps of up to `max_rows`.
int64_t planned_worker_bytes(const ModelConfig& config, DType compute_dtype, const Context& context,
                             int64_t max_rows);

/// Of the model's device; a step has at most `max_rows` rows.
std::unique_ptr<Workers> make_workers(const Model& model, int64_t max_rows);

}  // namespace fovea
