// Time of selection and of page statistics, beside dense attention over the same prompt.
//
//   selector_bench --benchmark_filter=32768
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>

#include "fovea/attention/attention.h"
#include "fovea/selector/block_selector.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

struct Shape {
  const char* name;
  int64_t num_q_heads, num_kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{"needle_7m", 4, 2, 128}, {"smollm2_135m", 9, 3, 64}};

// One layer of a whole prompt in bf16: contiguous keys, their statistics, and all queries.
struct Layer {
  int64_t len, zero = 0, q_offsets[2];
  Tensor q, k, v, out;
  BlockStats stats;
  SelectorParams params;

  Layer(const Shape& shape, int64_t tokens)
      : len(tokens),
        q_offsets{0, tokens},
        q(DType::kBF16, {len, shape.num_q_heads, shape.head_dim}),
        k(DType::kBF16, {len, shape.num_kv_heads, shape.head_dim}),
        v(DType::kBF16, {len, shape.num_kv_heads, shape.head_dim}),
        out(DType::kBF16, {len, shape.num_q_heads, shape.head_dim}),
        stats(DType::kBF16, len / 128, shape.num_kv_heads, shape.head_dim, 128, 4) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (const Tensor* tensor : {&q, &k, &v}) {
      for (int64_t i = 0; i < tensor->view().num_elements(); ++i) {
        tensor->as<BFloat16>()[i] = to_bfloat16(normal(generator));
      }
    }
    params.q = q.view();
    params.kv.k = k.view();
    params.kv.v = v.view();
    params.kv.kv_offsets = &zero;
    params.batch = {1, q_offsets, &len};
    params.block_offsets = &zero;
    params.stats = stats.view();
    compute_block_stats(params.kv, 0, 0, len / 128, 0, params.stats, {});
  }
};

void select(benchmark::State& state, const Shape& shape, int64_t len, SelectorSettings settings) {
  Layer layer(shape, len);
  layer.params.settings = settings;
  BlockSelection selection;
  for (auto _ : state) select_blocks(layer.params, {}, selection);
  state.counters["density"] = selection.density();
  state.counters["ns_per_pair"] = benchmark::Counter(
      static_cast<double>(selection.causal_pairs) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void statistics(benchmark::State& state, const Shape& shape, int64_t len) {
  Layer layer(shape, len);
  for (auto _ : state) {
    compute_block_stats(layer.params.kv, 0, 0, len / 128, 0, layer.params.stats, {});
  }
  state.SetBytesProcessed(state.iterations() * layer.k.size_bytes());
}

void attention(benchmark::State& state, const Shape& shape, int64_t len, float density) {
  Layer layer(shape, len);
  AttentionParams params;
  params.q = layer.params.q;
  params.kv = layer.params.kv;
  params.batch = layer.params.batch;
  params.out = layer.out.view();
  BlockSelection selection;
  BlockSelectionView view;
  if (density < 1) {
    layer.params.settings.density = density;
    select_blocks(layer.params, {}, selection);
    view = selection.view();
    params.selection = &view;
  }
  for (auto _ : state) attend(params, {});
}

void register_all() {
  for (const Shape& shape : kShapes) {
    for (int64_t len : {8192, 32768}) {
      const std::string suffix = std::string("/") + shape.name + "/" + std::to_string(len);
      auto add = [&](const std::string& name, auto body) {
        benchmark::RegisterBenchmark((name + suffix).c_str(), body)
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime()
            ->MinTime(0.2);
      };
      for (SelectorMethod method : {SelectorMethod::kCentroid, SelectorMethod::kRescue,
                                    SelectorMethod::kWitness, SelectorMethod::kBound}) {
        for (Aggregation aggregation : {Aggregation::kSum, Aggregation::kMax}) {
          for (float density : {0.0f, 0.0534f}) {
            SelectorSettings settings;
            settings.method = method;
            settings.aggregation = aggregation;
            settings.density = density;
            add(std::string(selector_method_name(method)) +
                    (aggregation == Aggregation::kSum ? "/sum" : "/max") +
                    (density > 0 ? "/budget" : "/thresholds"),
                [=](benchmark::State& state) { select(state, shape, len, settings); });
          }
        }
      }
      add("statistics/witness4", [=](benchmark::State& state) { statistics(state, shape, len); });
      add("attention/dense", [=](benchmark::State& state) { attention(state, shape, len, 1); });
      add("attention/sparse_0.0534",
          [=](benchmark::State& state) { attention(state, shape, len, 0.0534f); });
    }
  }
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
