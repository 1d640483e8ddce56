// Statistics and selection on the GPU against the CPU's and the double reference.
#include "fovea/selector/cuda/cuda_selector.h"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "fovea/attention/attention.h"
#include "fovea/selector/cuda/block_stats_cuda.h"
#include "fovea/tensor/cuda/check.h"
#include "tests/attention/cuda_mirror.h"
#include "tests/selector/list_judge.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using cases::DeviceBuffer;
using testing::Call;
using testing::CaseShape;
using testing::list_of;
using testing::make_prompt;
using testing::PagedCase;
using testing::Prompt;
using testing::WholePrompt;

const Context kGpu{.device = {DeviceType::kCuda, 0}};

class CudaSelection : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cases::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// What SelectorParams points to, in GPU memory; q, K, V and means in f16 where `is_f16`, which
/// host tensors hold as f32.
class DeviceCall {
 public:
  explicit DeviceCall(const SelectorParams& host, bool is_f16 = false)
      : params_(host), is_f16_(is_f16) {
    const int64_t batch = host.batch.batch_size;
    params_.q = copy(host.q);
    params_.kv.k = copy(host.kv.k);
    params_.kv.v = copy(host.kv.v);
    params_.kv.page_table = keep(host.kv.page_table, batch * host.kv.page_table_stride);
    params_.batch.q_offsets = keep(host.batch.q_offsets, batch + 1);
    params_.batch.kv_lens = keep(host.batch.kv_lens, batch);
    params_.prompt_lens = keep(host.prompt_lens, batch);
    BlockStatsView& stats = params_.stats;
    for (TensorView* view : {&stats.centroid, &stats.v_mean, &stats.witness, &stats.rest_mean}) {
      *view = copy(*view);
    }
    stats.radius = copy_as_is(stats.radius);
    stats.non_finite = copy_as_is(stats.non_finite);
  }
  SelectorParams& params() { return params_; }

  /// Copies a dense tensor back.
  static void fetch(const TensorView& from, const TensorView& to) {
    if (from.num_elements() == 0) return;
    cuda::check_cuda(cudaMemcpy(to.data, from.data,
                                static_cast<size_t>(to.num_elements() * dtype_bytes(to.dtype)),
                                cudaMemcpyDeviceToHost),
                     "fetching a tensor");
  }

 private:
  template <typename T>
  const T* keep(const T* data, int64_t count) {
    buffers_.push_back(DeviceBuffer::copy_of(data, count));
    return buffers_.back().as<const T>();
  }
  TensorView copy(const TensorView& host) {
    if (!is_f16_ || host.empty()) return copy_as_is(host);
    const auto* values = host.as<const float>();
    const std::vector<__half> narrow(values, values + host.num_elements());
    TensorView view = host;
    view.dtype = DType::kF16;
    view.device = kGpu.device;
    view.data = const_cast<__half*>(keep(narrow.data(), host.num_elements()));
    return view;
  }
  TensorView copy_as_is(const TensorView& host) {
    TensorView view = host;
    if (host.empty()) return view;
    view.device = kGpu.device;
    view.data = const_cast<char*>(
        keep(host.as<const char>(), host.num_elements() * dtype_bytes(host.dtype)));
    return view;
  }
  SelectorParams params_;
  bool is_f16_;
  std::vector<DeviceBuffer> buffers_;
};

CaseShape shape_of(int64_t head_dim, int64_t num_witnesses = 4, int64_t block_size = 128) {
  return {.dtype = DType::kBF16,
          .num_q_heads = 6,
          .num_kv_heads = 2,
          .head_dim = head_dim,
          .block_size = block_size,
          .num_witnesses = num_witnesses};
}

/// Selects on the GPU from the CPU's statistics and compares with the reference's lists. Scores are
/// sums of exponentials by ex2.approx in f32.
void expect_like_reference(const SelectorParams& params, bool is_f16 = false) {
  DeviceCall device(params, is_f16);
  check_selector_params(device.params(), kGpu);
  ASSERT_EQ(cuda_selector().why_unsupported(device.params(), kGpu), "");
  BlockSelection got;
  cuda_selector().run(device.params(), kGpu, got);
  testing::expect_reference_lists(params, got, {.near_tie = 1e-3, .share = 0.02});
}

double at(const TensorView& view, int64_t index) {
  return static_cast<double>(view.dtype == DType::kF32 ? view.as<float>()[index]
                                                       : to_float(view.as<BFloat16>()[index]));
}

TEST_F(CudaSelection, StatisticsFollowTheirRules) {
  for (const auto& [head_dim, size] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {64, 128}, {128, 128}, {256, 128}, {64, 64}, {128, 256}, {256, 64}, {64, 256}}) {
    for (const int64_t num_witnesses : {0, 1, 8}) {
      SCOPED_TRACE(
          fmt::format("head_dim {}, block_size {}, {} witnesses", head_dim, size, num_witnesses));
      const CaseShape shape = shape_of(head_dim, num_witnesses, size);
      const Prompt prompt = make_prompt(shape, 9 * size + 40, 5);
      PagedCase pages(shape, 12, 1, 3);
      pages.append(0, prompt, prompt.len);
      SelectorParams host;
      host.kv = pages.kv();
      host.batch.batch_size = 1;
      host.stats = pages.stats().view();
      const int64_t q_offsets[] = {0, 0};
      host.batch.q_offsets = q_offsets;
      host.batch.kv_lens = pages.kv_lens().data();
      host.q = Tensor(DType::kBF16, {0, shape.num_q_heads, head_dim}).view();
      DeviceCall device(host);
      const BlockStats on_cpu(DType::kBF16, 12, 2, head_dim, size, num_witnesses);
      compute_block_stats_cuda(device.params().kv, 0, 0, 9, 0, device.params().stats, kGpu);
      cuda::check_cuda(cudaDeviceSynchronize(), "computing statistics");
      const BlockStatsView got = on_cpu.view();
      const BlockStatsView& from = device.params().stats;
      DeviceCall::fetch(from.centroid, got.centroid);
      DeviceCall::fetch(from.radius, got.radius);
      DeviceCall::fetch(from.v_mean, got.v_mean);
      DeviceCall::fetch(from.non_finite, got.non_finite);
      if (num_witnesses > 0) {
        DeviceCall::fetch(from.witness, got.witness);
        DeviceCall::fetch(from.rest_mean, got.rest_mean);
      }
      for (int64_t b = 0; b < 9; ++b) {
        for (int64_t h = 0; h < 2; ++h) {
          const int64_t entry = pages.table(0, b) * 2 + h;
          const auto key = [&](int64_t t, int64_t c) {
            return at(host.kv.k, (entry * size + t) * head_dim + c);
          };
          // The mean of rows, rounded once; f32 sums may round the other way at a tie.
          const auto expect_mean = [&](const TensorView& view, auto value, auto is_in,
                                       double count) {
            for (int64_t c = 0; c < head_dim; ++c) {
              double sum = 0;
              for (int64_t t = 0; t < size; ++t) sum += is_in(t) ? value(t, c) : 0.0;
              const double mean = sum / count;
              ASSERT_NEAR(at(view, entry * head_dim + c), mean, std::abs(mean) * 0x1p-8 + 1e-6);
            }
          };
          const auto all = [](int64_t) { return true; };
          expect_mean(got.centroid, key, all, static_cast<double>(size));
          expect_mean(
              got.v_mean,
              [&](int64_t t, int64_t c) {
                return at(host.kv.v, (entry * size + t) * head_dim + c);
              },
              all, static_cast<double>(size));
          std::vector<double> nearest(static_cast<size_t>(size), 0.0);
          for (int64_t t = 0; t < size; ++t) {
            for (int64_t c = 0; c < head_dim; ++c) {
              nearest[static_cast<size_t>(t)] +=
                  std::pow(key(t, c) - at(got.centroid, entry * head_dim + c), 2);
            }
          }
          const double radius = std::sqrt(*std::max_element(nearest.begin(), nearest.end()));
          EXPECT_NEAR(at(got.radius, entry), radius, 1e-5 * radius);
          EXPECT_EQ(got.non_finite.as<int32_t>()[entry], 0);
          std::vector<int64_t> chosen;
          for (int64_t w = 0; w < num_witnesses; ++w) {
            const int64_t row = (pages.table(0, b) * 2 * num_witnesses + h * num_witnesses + w);
            const auto is_key = [&](int64_t t) {
              for (int64_t c = 0; c < head_dim; ++c) {
                if (at(got.witness, row * head_dim + c) != key(t, c)) return false;
              }
              return true;
            };
            int64_t found = 0;
            while (found < size && !is_key(found)) ++found;
            ASSERT_LT(found, size) << "witness " << w << " is no key of its block";
            const double farthest = *std::max_element(nearest.begin(), nearest.end());
            EXPECT_GE(nearest[static_cast<size_t>(found)], farthest * (1 - 1e-5));
            chosen.push_back(found);
            for (int64_t t = 0; t < size; ++t) {
              double distance = 0;
              for (int64_t c = 0; c < head_dim; ++c) {
                distance += std::pow(key(t, c) - key(found, c), 2);
              }
              auto& near = nearest[static_cast<size_t>(t)];
              near = t == found ? -1 : std::min(near, distance);
            }
          }
          if (num_witnesses > 0) {
            expect_mean(
                got.rest_mean, key,
                [&](int64_t t) { return std::count(chosen.begin(), chosen.end(), t) == 0; },
                static_cast<double>(size - num_witnesses));
          }
        }
      }
    }
  }
}

TEST_F(CudaSelection, FlagsBlocksThatAreNotFinite) {
  const CaseShape shape = shape_of(64);
  Prompt prompt = make_prompt(shape, 4 * 128, 5);
  prompt.k[static_cast<size_t>((1 * 128 + 17) * 2 * 64 + 3)] = NAN;             // block 1, head 0
  prompt.k[static_cast<size_t>((3 * 128 + 100) * 2 * 64 + 64 + 9)] = INFINITY;  // block 3, head 1
  WholePrompt whole(shape, std::move(prompt), {});
  DeviceCall device(whole.call.params);
  compute_block_stats_cuda(device.params().kv, 0, 0, 4, 0, device.params().stats, kGpu);
  const Tensor flags(DType::kI32, {5, 2});
  DeviceCall::fetch(device.params().stats.non_finite, flags.view());
  for (int64_t b = 0; b < 4; ++b) {
    const int32_t* of_block = flags.as<int32_t>() + whole.pages.table(0, b) * 2;
    EXPECT_EQ(of_block[0], b == 1);
    EXPECT_EQ(of_block[1], b == 3);
  }
}

TEST_F(CudaSelection, ListsAreTheReferences) {
  using Method = SelectorMethod;
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const Method method : {Method::kCentroid, Method::kRescue, Method::kWitness,
                                Method::kBound, Method::kAll, Method::kStreaming}) {
      for (const float density : {0.0f, 0.25f}) {
        for (const int64_t num_witnesses : {1, 4, 8}) {
          if (method != Method::kWitness && num_witnesses != 4) continue;
          SCOPED_TRACE(fmt::format("{} head_dim {} density {} W {}", selector_method_name(method),
                                   head_dim, density, num_witnesses));
          SelectorSettings settings;
          settings.method = method;
          settings.density = density;
          settings.forced_in_maximum = head_dim == 64;
          settings.uplift_clamp = head_dim == 128 ? 0.9f : 0.0f;
          settings.streaming_local_tokens = 500;
          const CaseShape shape = shape_of(head_dim, num_witnesses);
          WholePrompt whole(shape, make_prompt(shape, 37 * 128 + 5, 23), settings);
          expect_like_reference(whole.call.params);
        }
      }
    }
  }
}

// Powers of 2 are added up as they are only where no logit can be beyond +-100.
TEST_F(CudaSelection, ListsAreTheReferencesWhereLogitsAreLarge) {
  using Method = SelectorMethod;
  for (const float factor : {4.0f, 32.0f}) {
    for (const Method method :
         {Method::kCentroid, Method::kRescue, Method::kWitness, Method::kBound}) {
      for (const float density : {0.0f, 0.25f}) {
        SCOPED_TRACE(fmt::format("{} keys times {} density {}", selector_method_name(method),
                                 factor, density));
        SelectorSettings settings;
        settings.method = method;
        settings.density = density;
        const CaseShape shape = shape_of(128);
        Prompt prompt = make_prompt(shape, 37 * 128 + 5, 23);
        for (float& value : prompt.k) value *= factor;
        WholePrompt whole(shape, std::move(prompt), settings);
        expect_like_reference(whole.call.params);
      }
    }
  }
}

TEST_F(CudaSelection, ListsAreTheReferencesForEveryBlockSize) {
  using Method = SelectorMethod;
  for (const int64_t block_size : {64, 256}) {
    for (const int64_t head_dim : {64, 128}) {
      for (const Method method : {Method::kCentroid, Method::kRescue, Method::kWitness,
                                  Method::kBound, Method::kStreaming}) {
        for (const float density : {0.0f, 0.25f}) {
          SCOPED_TRACE(fmt::format("{} block_size {} head_dim {} density {}",
                                   selector_method_name(method), block_size, head_dim, density));
          SelectorSettings settings;
          settings.method = method;
          settings.density = density;
          settings.streaming_local_tokens = 700;
          const CaseShape shape = shape_of(head_dim, 4, block_size);
          WholePrompt whole(shape, make_prompt(shape, 19 * block_size + 45, 29), settings);
          expect_like_reference(whole.call.params);
        }
      }
    }
  }
}

/// Rounds f32 values to f16.
void round_to_f16(std::vector<float>& values) {
  for (float& value : values) value = __half2float(__float2half_rn(value));
}

TEST_F(CudaSelection, ListsAreTheReferencesInF16) {
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const SelectorMethod method :
         {SelectorMethod::kCentroid, SelectorMethod::kRescue, SelectorMethod::kWitness}) {
      for (const float density : {0.0f, 0.25f}) {
        SCOPED_TRACE(fmt::format("{} head_dim {} density {}", selector_method_name(method),
                                 head_dim, density));
        SelectorSettings settings;
        settings.method = method;
        settings.density = density;
        CaseShape shape = shape_of(head_dim);
        shape.dtype = DType::kF32;
        Prompt prompt = make_prompt(shape, 21 * 128 + 5, 23);
        for (std::vector<float>* values : {&prompt.q, &prompt.k, &prompt.v}) round_to_f16(*values);
        WholePrompt whole(shape, std::move(prompt), settings);
        const BlockStatsView& stats = whole.pages.stats().view();
        for (const TensorView* view : {&stats.centroid, &stats.rest_mean}) {
          for (int64_t i = 0; i < view->num_elements(); ++i) {
            float& value = view->as<float>()[i];
            value = __half2float(__float2half_rn(value));
          }
        }
        expect_like_reference(whole.call.params, true);
      }
    }
  }
}

TEST_F(CudaSelection, ManyBlocksAndEqualOnes) {
  CaseShape shape = shape_of(64);
  shape.num_q_heads = 4;
  for (const bool is_equal : {false, true}) {
    Prompt prompt = make_prompt(shape, 700 * 128, 31);
    if (is_equal) {
      for (size_t i = 0; i < prompt.k.size(); ++i) prompt.k[i] = prompt.k[i % 128];
    }
    for (const SelectorMethod method :
         {SelectorMethod::kCentroid, SelectorMethod::kRescue, SelectorMethod::kWitness}) {
      for (const float density : {0.0f, 0.1f}) {
        SCOPED_TRACE(
            fmt::format("{} density {} equal {}", selector_method_name(method), density, is_equal));
        SelectorSettings settings;
        settings.method = method;
        settings.density = density;
        PagedCase pages(shape, 701, 1, 3);
        pages.append(0, prompt, prompt.len);
        const Call call(pages, {&prompt}, {2 * 128}, settings);
        expect_like_reference(call.params);
      }
    }
  }
}

TEST_F(CudaSelection, RaggedBatchesOfChunksAndTails) {
  const CaseShape shape = shape_of(128);
  SelectorSettings settings;
  for (const SelectorMethod method :
       {SelectorMethod::kRescue, SelectorMethod::kWitness, SelectorMethod::kCentroid}) {
    for (const QuantileMode quantiles : {QuantileMode::kCausal, QuantileMode::kPrompt}) {
      settings.method = method;
      settings.quantiles = quantiles;
      settings.dense_tail_blocks = 2;
      settings.min_sparse_len = 700;
      const Prompt a = make_prompt(shape, 30 * 128 + 77, 1), b = make_prompt(shape, 600, 2),
                   c = make_prompt(shape, 20 * 128, 3);
      PagedCase pages(shape, 60, 4, 11);
      pages.append(0, a, 25 * 128);
      pages.append(1, b, 600);
      pages.append(3, c, c.len);
      const Call call(pages, {&a, &b, nullptr, &c}, {9 * 128, 600 - 128, 0, 20 * 128}, settings);
      SCOPED_TRACE(selector_method_name(method));
      expect_like_reference(call.params);
    }
  }
}

TEST_F(CudaSelection, ListsDependOnNeitherChunksNorBatchMates) {
  const CaseShape shape = shape_of(128);
  const Prompt prompt = make_prompt(shape, 20 * 128 + 50, 9), mate = make_prompt(shape, 900, 10);
  for (const float density : {0.0f, 0.2f}) {
    SelectorSettings settings;
    settings.density = density;
    const auto select = [&](PagedCase& pages, const std::vector<const Prompt*>& prompts,
                            const std::vector<int64_t>& q_lens) {
      const Call call(pages, prompts, q_lens, settings);
      DeviceCall device(call.params);
      BlockSelection selection;
      cuda_selector().run(device.params(), kGpu, selection);
      return selection;
    };
    PagedCase whole_pages(shape, 30, 1, 3);
    whole_pages.append(0, prompt, prompt.len);
    const BlockSelection whole = select(whole_pages, {&prompt}, {prompt.len});
    PagedCase pages(shape, 40, 2, 4);
    pages.append(1, mate, mate.len);
    int64_t done = 0;
    for (const int64_t chunk : {3 * 128, 128, 9 * 128, 7 * 128 + 50}) {
      pages.append(0, prompt, chunk);
      const BlockSelection part = select(pages, {&prompt, &mate}, {chunk, 900});
      for (int64_t h = 0; h < shape.num_q_heads; ++h) {
        for (int64_t i = 0; i < ceil_div(chunk, 128); ++i) {
          EXPECT_EQ(list_of(part, h, i), list_of(whole, h, done / 128 + i));
        }
      }
      done += chunk;
    }
  }
}

TEST_F(CudaSelection, NonFiniteKeysAndQueriesAreKeptAndCounted) {
  const CaseShape shape = shape_of(128);
  for (const SelectorMethod method : {SelectorMethod::kRescue, SelectorMethod::kWitness}) {
    for (const float density : {0.0f, 0.2f}) {
      SelectorSettings settings;
      settings.method = method;
      settings.density = density;
      Prompt prompt = make_prompt(shape, 16 * 128, 5);
      prompt.k[static_cast<size_t>((5 * 128 + 3) * 2 * 128)] = NAN;
      prompt.k[static_cast<size_t>((9 * 128 + 3) * 2 * 128 + 128)] = INFINITY;
      prompt.q[static_cast<size_t>((12 * 128 + 3) * 6 * 128 + 7)] = NAN;
      WholePrompt whole(shape, std::move(prompt), settings);
      expect_like_reference(whole.call.params);
    }
  }
}

TEST_F(CudaSelection, AFullPoolIsSaidAndReadsEverything) {
  const CaseShape shape = shape_of(128);
  SelectorSettings settings;
  settings.density = 0.3f;
  WholePrompt whole(shape, make_prompt(shape, 20 * 128, 5), settings);
  DeviceCall device(whole.call.params);
  DeviceSelection selection(CudaSelector::sizes_for(device.params(), 0.005), kGpu);
  cuda_selector().run(device.params(), kGpu, selection);
  BlockSelection lists;
  try {
    selection.download(lists);
    FAIL() << "a pool of half a percent held 30 %";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("did not fit the pool"));
  }
}

TEST_F(CudaSelection, AttentionReadsTheListsWhereTheyAre) {
  const CaseShape shape = shape_of(128);
  SelectorSettings settings;
  settings.density = 0.2f;
  WholePrompt whole(shape, make_prompt(shape, 12 * 128 + 9, 5), settings);
  DeviceCall device(whole.call.params);
  DeviceSelection selection(CudaSelector::sizes_for(device.params(), 1.0), kGpu);
  cuda_selector().run(device.params(), kGpu, selection);

  const int64_t total = whole.prompt.len;
  AttentionParams on_gpu;
  on_gpu.q = device.params().q;
  on_gpu.kv = device.params().kv;
  on_gpu.batch = device.params().batch;
  DeviceBuffer out_buffer(total * 6 * 128 * 2);
  on_gpu.out = make_view(out_buffer.as<void>(), DType::kBF16, {total, 6, 128}, kGpu.device);
  on_gpu.selection = &selection.view();
  attend(on_gpu, kGpu);
  const Tensor got(DType::kBF16, {total, 6, 128}), want(DType::kBF16, {total, 6, 128});
  cuda::check_cuda(cudaDeviceSynchronize(), "running attention");
  DeviceCall::fetch(on_gpu.out, got.view());

  BlockSelection lists;
  selection.download(lists);
  EXPECT_LT(lists.kept_pairs, 6 * 13 * 14 / 2);
  AttentionParams on_cpu;
  on_cpu.q = whole.call.params.q;
  on_cpu.kv = whole.call.params.kv;
  on_cpu.batch = whole.call.params.batch;
  on_cpu.out = want.view();
  const BlockSelectionView view = lists.view();
  on_cpu.selection = &view;
  attend(on_cpu, {});
  double error = 0, norm = 0;
  for (int64_t i = 0; i < total * 6 * 128; ++i) {
    error += std::pow(at(got.view(), i) - at(want.view(), i), 2);
    norm += std::pow(at(want.view(), i), 2);
  }
  EXPECT_LT(std::sqrt(error), 6e-3 * std::sqrt(norm));  // both round weights and outputs to bf16
}

}  // namespace
}  // namespace fovea
