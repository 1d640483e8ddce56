// RowOps of one CPU thread.
#pragma once

#include "fovea/ops/row_ops.h"
#include "fovea/ops/sampling.h"

namespace fovea {

/// Compute type f32 or bf16. matmul(), matmul_add(): rows, padded as matmul_slab() says, must be
/// readable in `in` and writable in `out`. In a step of one row they use all threads of the
/// context, in longer ones the calling thread alone.
class CpuRowOps final : public RowOps {
 public:
  explicit CpuRowOps(const Context& context);
  ~CpuRowOps() override;

  void begin_step(int64_t num_rows) override;
  void embed(const int32_t* tokens, const TensorView& table, float scale,
             const TensorView& out) override;
  void norm(const TensorView& x, const TensorView& weight, float eps, int64_t layer,
            const TensorView& out) override;
  int64_t non_finite_layer() override { return non_finite_layer_; }
  void matmul(const TensorView& in, const PackedWeights& weights, const TensorView& out) override;
  void matmul_add(const TensorView& in, const PackedWeights& weights,
                  const TensorView& residual) override;
  void add_bias(const TensorView& bias, const TensorView& rows) override;
  void finish_qkv(const QkvTask& task) override;
  void activate(GateFunction function, const TensorView& gate_up, const TensorView& out) override;
  void add_normed(const TensorView& x, const TensorView& weight, float eps,
                  const TensorView& residual) override;
  void moe(const MoeTask& task) override;
  void draw(const TensorView& logits, const Draw* draw, int32_t* token) override;

 private:
  struct MoeScratch;

  Context context_;
  bool is_single_row_ = false;
  int64_t non_finite_layer_ = -1;
  MatmulScratch scratch_;
  Tensor product_;  // f32, grows: what matmul_add() adds
  std::unique_ptr<MoeScratch> moe_;
  DrawScratch draw_scratch_;
};

}  // namespace fovea
