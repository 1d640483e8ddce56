// From the attention kernel to the time to first token: how much of a win arrives.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/bench.h"

namespace fovea::cli {

/// The same three times of dense or sparse attention; ms, medians.
struct ChainTimes {
  double kernel_ms = 0;  // attend() alone on random data: the whole prompt in one call, all layers
  double engine_ms = 0;  // attention in the engine, selection and statistics included
  double ttft_ms = 0;
};

/// One length with one sparse attention against dense.
struct ChainRow {
  int64_t length = 0;
  std::string attention;
  double density = 1;
  ChainTimes dense, sparse;

  double kernel_speedup() const { return dense.kernel_ms / sparse.kernel_ms; }
  double engine_speedup() const { return dense.engine_ms / sparse.engine_ms; }
  double ttft_speedup() const { return dense.ttft_ms / sparse.ttft_ms; }
  /// Attention's share p of dense's ttft.
  double attention_share() const { return dense.engine_ms / dense.ttft_ms; }
  /// What Amdahl's law makes of engine_speedup() and that share.
  double predicted_speedup() const;
  /// ttft of dense when each layer's attention takes `layer_ms`, over this one's.
  double speedup_over_rival(double layer_ms, int64_t num_layers) const;
};

/// Medians of a bench's rows, of every sparse attention that has dense beside it. Kernels are not
/// timed yet.
std::vector<ChainRow> chain_of(const std::vector<BenchRow>& rows);

/// Times the kernels of `rows` on the model's device, dense once a length, with lists of random
/// blocks of each row's density. Local layers, which are dense either way, are not counted.
void time_kernels(const Model& model, bool periphery, std::vector<ChainRow>& rows);

/// One a row; with `rival_layer_ms`, one a length in `lengths`, what is won over that rival too.
nlohmann::json chain_json(const std::vector<ChainRow>& rows, const std::vector<int64_t>& lengths,
                          const std::vector<double>& rival_layer_ms, int64_t num_layers);
std::string chain_table(const std::vector<ChainRow>& rows, const std::vector<int64_t>& lengths,
                        const std::vector<double>& rival_layer_ms, int64_t num_layers);

}  // namespace fovea::cli
