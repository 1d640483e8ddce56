// A mixture of experts with random weights, on any device, and what it should give.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "fovea/ops/reference/reference.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"

namespace fovea::test {

class MoeCase {
 public:
  /// All values are such that bf16 holds them.
  explicit MoeCase(const reference::Moe& moe_shape) : shape(moe_shape) {
    const auto spread = [](int64_t size) { return 1 / std::sqrt(static_cast<float>(size)); };
    const int64_t experts = shape.num_experts;
    router = random(experts * shape.dim, 2 * spread(shape.dim), 2);
    gate_up = random(experts * 2 * shape.expert_dim * shape.dim, 2 * spread(shape.dim), 3);
    down = random(experts * shape.dim * shape.expert_dim, spread(shape.expert_dim), 4);
    if (shape.function == GateFunction::kClampedSwiglu) {
      biases = {random(experts, 1, 6), random(experts * 2 * shape.expert_dim, 4, 7),
                random(experts * shape.dim, 1, 8)};
    }
  }

  struct Weights {
    PackedWeights router;
    ExpertWeights gate_up, down;
    Tensor router_bias, gate_up_bias, down_bias;
  };
  Weights weights(DType dtype, Device device) const {
    const int64_t width = shape.expert_dim;
    Weights packed{PackedWeights(dtype, shape.num_experts, shape.dim, device),
                   ExpertWeights(dtype, shape.num_experts, 2 * width, shape.dim, device),
                   ExpertWeights(dtype, shape.num_experts, shape.dim, width, device),
                   tensor_of(biases.router, {shape.num_experts}, device),
                   tensor_of(biases.gate_up, {shape.num_experts, 2 * width}, device),
                   tensor_of(biases.down, {shape.num_experts, shape.dim}, device)};
    packed.router.set_rows(0, shape.num_experts, router.data());
    for (int64_t expert = 0; expert < shape.num_experts; ++expert) {
      packed.gate_up.set_rows(expert, 0, width, gate_up.data() + expert * 2 * width * shape.dim);
      packed.gate_up.set_rows(expert, width, width,
                              gate_up.data() + (expert * 2 + 1) * width * shape.dim);
      packed.down.set_rows(expert, 0, shape.dim, down.data() + expert * width * shape.dim);
    }
    return packed;
  }

  /// All but `normed` and `residual`.
  MoeTask task(const Weights& packed) const {
    MoeTask task;
    task.router = &packed.router;
    task.gate_up = &packed.gate_up;
    task.down = &packed.down;
    task.top_k = shape.top_k;
    task.normalise = shape.normalise;
    task.function = shape.function;
    task.router_bias = packed.router_bias.view();
    task.gate_up_bias = packed.gate_up_bias.view();
    task.down_bias = packed.down_bias.view();
    return task;
  }

  /// The first `count` rows that go in, the same however many are asked for.
  std::vector<float> row_values(int64_t count) const { return random(count * shape.dim, 1, 5); }
  Tensor rows(DType dtype, int64_t count) const {
    const std::vector<float> values = row_values(count);
    Tensor tensor(dtype, {count, shape.dim});
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        tensor.as<float>()[i] = values[i];
      } else {
        tensor.as<BFloat16>()[i] = to_bfloat16(values[i]);
      }
    }
    return tensor;
  }

  std::vector<float> expected(int64_t count) const {
    const std::vector<double> result =
        reference::moe(shape, row_values(count), router, gate_up, down, biases);
    return {result.begin(), result.end()};
  }

  reference::Moe shape;
  std::vector<float> router, gate_up, down;
  reference::MoeBiases biases;  // of the clamped swiglu

 private:
  static Tensor tensor_of(const std::vector<float>& values, std::initializer_list<int64_t> shape,
                          Device device) {
    if (values.empty()) return {};
    Tensor tensor(DType::kF32, shape, device);
    copy_tensor(make_view(const_cast<float*>(values.data()), DType::kF32, shape), tensor.view(),
                {.device = device});
    return tensor;
  }
  static std::vector<float> random(int64_t count, float spread, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = to_float(to_bfloat16(normal(generator)));
    return values;
  }
};

}  // namespace fovea::test
