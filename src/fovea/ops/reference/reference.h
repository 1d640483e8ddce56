// The operations in plain loops and double, for tests. Never optimised.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/ops/gated_activation.h"

namespace fovea::reference {

/// x [rows, in] times weights [out, in] transposed, double accumulation.
std::vector<double> matmul(const std::vector<float>& x, const std::vector<float>& weights,
                           int64_t rows, int64_t out_features, int64_t in_features);

/// x [rows, dim] / sqrt(mean of squares + eps) * weight [dim].
std::vector<double> rms_norm(const std::vector<float>& x, const std::vector<float>& weight,
                             double eps, int64_t rows);

/// Rotates x [rows, heads, head_dim], row r at position first_position + r, pairs (i, i + half).
std::vector<double> rope(const std::vector<float>& x, int64_t rows, int64_t heads, int64_t head_dim,
                         int64_t first_position, double theta, const std::vector<float>& factors);

/// function(gate) * up of gate_up [rows, 2 * mlp_dim], see GateFunction.
std::vector<double> gated_activation(GateFunction function, const std::vector<float>& gate_up,
                                     int64_t rows, int64_t mlp_dim);

/// A mixture of gated mlps, to be added to the residual stream: x [rows, dim], router [experts,
/// dim], gate_up [experts, 2 * expert_dim, dim], down [experts, dim, expert_dim]. The softmax of
/// the router's logits weights the top_k outputs; `normalise` makes the weights sum to one.
struct Moe {
  int64_t dim, num_experts, expert_dim, top_k;
  bool normalise;
  GateFunction function;
};
/// Of the router [experts], of gate_up [experts, 2 * expert_dim] and of down [experts, dim]; or
/// empty.
struct MoeBiases {
  std::vector<float> router, gate_up, down;
};
std::vector<double> moe(const Moe& shape, const std::vector<float>& x,
                        const std::vector<float>& router, const std::vector<float>& gate_up,
                        const std::vector<float>& down, const MoeBiases& biases = {});

}  // namespace fovea::reference
