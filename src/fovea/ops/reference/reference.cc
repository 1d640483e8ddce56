#include "fovea/ops/reference/reference.h"

#include <algorithm>
#include <cmath>

namespace fovea::reference {

std::vector<double> matmul(const std::vector<float>& x, const std::vector<float>& weights,
                           int64_t rows, int64_t out_features, int64_t in_features) {
  std::vector<double> result;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out_features; ++o) {
      double sum = 0;
      for (int64_t k = 0; k < in_features; ++k) {
        sum += static_cast<double>(x[static_cast<size_t>(r * in_features + k)]) *
               static_cast<double>(weights[static_cast<size_t>(o * in_features + k)]);
      }
      result.push_back(sum);
    }
  }
  return result;
}

std::vector<double> rms_norm(const std::vector<float>& x, const std::vector<float>& weight,
                             double eps, int64_t rows) {
  const size_t dim = weight.size();
  std::vector<double> result;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double sum = 0;
    for (size_t i = 0; i < dim; ++i) {
      const double value = x[r * dim + i];
      sum += value * value;
    }
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(dim) + eps);
    for (size_t i = 0; i < dim; ++i) {
      result.push_back(static_cast<double>(x[r * dim + i]) * scale *
                       static_cast<double>(weight[i]));
    }
  }
  return result;
}

std::vector<double> rope(const std::vector<float>& x, int64_t rows, int64_t heads, int64_t head_dim,
                         int64_t first_position, double theta, const std::vector<float>& factors) {
  std::vector<double> result(x.size());
  const auto half = static_cast<size_t>(head_dim / 2);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto base = static_cast<size_t>((r * heads + h) * head_dim);
      for (size_t i = 0; i < half; ++i) {
        const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
        const double frequency =
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)) / factor;
        const double angle = static_cast<double>(first_position + r) * frequency;
        const double a = x[base + i];
        const double b = x[base + half + i];
        result[base + i] = a * std::cos(angle) - b * std::sin(angle);
        result[base + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  return result;
}

namespace {

double gated(GateFunction function, double gate, double up) {
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  switch (function) {
    case GateFunction::kSilu:
      return gate * sigmoid(gate) * up;
    case GateFunction::kGeluTanh: {
      const double inner =
          std::sqrt(2.0 / 3.14159265358979323846) * (gate + 0.044715 * gate * gate * gate);
      return 0.5 * gate * (1.0 + std::tanh(inner)) * up;
    }
    case GateFunction::kClampedSwiglu:
      gate = std::min(gate, 7.0);
      return gate * sigmoid(1.702 * gate) * (std::clamp(up, -7.0, 7.0) + 1.0);
  }
  return 0.0;
}

}  // namespace

std::vector<double> gated_activation(GateFunction function, const std::vector<float>& gate_up,
                                     int64_t rows, int64_t mlp_dim) {
  std::vector<double> result;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < mlp_dim; ++i) {
      const double gate = gate_up[static_cast<size_t>(r * 2 * mlp_dim + i)];
      const double up = gate_up[static_cast<size_t>(r * 2 * mlp_dim + mlp_dim + i)];
      result.push_back(gated(function, gate, up));
    }
  }
  return result;
}

std::vector<double> moe(const Moe& shape, const std::vector<float>& x,
                        const std::vector<float>& router, const std::vector<float>& gate_up,
                        const std::vector<float>& down, const MoeBiases& biases) {
  const auto dim = static_cast<size_t>(shape.dim);
  const auto num_experts = static_cast<size_t>(shape.num_experts);
  const size_t rows = x.size() / dim;
  std::vector<double> logits =
      matmul(x, router, static_cast<int64_t>(rows), shape.num_experts, shape.dim);
  const auto add_bias = [](const std::vector<float>& bias, size_t first, std::vector<double>& to) {
    for (size_t i = 0; !bias.empty() && i < to.size(); ++i)
      to[i] += bias[(first + i) % bias.size()];
  };
  add_bias(biases.router, 0, logits);
  std::vector<double> result(x.size());
  for (size_t row = 0; row < rows; ++row) {
    const double* score = logits.data() + row * num_experts;
    std::vector<size_t> order(num_experts);
    for (size_t e = 0; e < num_experts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return score[a] > score[b]; });
    const size_t top_k = static_cast<size_t>(shape.top_k);
    double sum = 0;
    for (size_t i = 0; i < (shape.normalise ? top_k : num_experts); ++i) {
      sum += std::exp(score[order[i]]);
    }
    for (size_t i = 0; i < top_k; ++i) {
      const auto first = [&](const std::vector<float>& all) {
        return all.begin() + static_cast<int64_t>(order[i] * all.size() / num_experts);
      };
      const auto size = [&](const std::vector<float>& all) {
        return static_cast<int64_t>(all.size() / num_experts);
      };
      const std::vector<float> in(x.begin() + static_cast<int64_t>(row * dim),
                                  x.begin() + static_cast<int64_t>((row + 1) * dim));
      std::vector<double> product = matmul(in, {first(gate_up), first(gate_up) + size(gate_up)}, 1,
                                           2 * shape.expert_dim, shape.dim);
      add_bias(biases.gate_up, order[i] * product.size(), product);
      const std::vector<double> activated =
          gated_activation(shape.function, {product.begin(), product.end()}, 1, shape.expert_dim);
      std::vector<double> out =
          matmul({activated.begin(), activated.end()}, {first(down), first(down) + size(down)}, 1,
                 shape.dim, shape.expert_dim);
      add_bias(biases.down, order[i] * dim, out);
      for (size_t j = 0; j < dim; ++j) {
        result[row * dim + j] += std::exp(score[order[i]]) / sum * out[j];
      }
    }
  }
  return result;
}

}  // namespace fovea::reference
