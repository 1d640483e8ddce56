// The operations in plain loops and double, for tests. Never optimised.
#pragma once

#include <cstdint>
#include <vector>

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

/// silu(gate) * up or gelu_tanh(gate) * up of gate_up [rows, 2 * mlp_dim].
std::vector<double> gated_activation(bool silu, const std::vector<float>& gate_up, int64_t rows,
                                     int64_t mlp_dim);

}  // namespace fovea::reference
