#include "tests/attention/cuda_mirror.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fovea/tensor/cuda/device.h"
#include "tests/cases/tolerances.h"

namespace fovea::cases {
namespace {

constexpr int64_t kGuard = 1024;  // elements before and after an output
constexpr std::byte kPoison{0x5a};

uint16_t to_bits(float value, DType dtype) {
  if (dtype == DType::kF16) return std::bit_cast<uint16_t>(__half_raw(__float2half_rn(value)));
  return std::bit_cast<uint16_t>(__nv_bfloat16_raw(__float2bfloat16_rn(value)));
}

float from_bits(uint16_t bits, DType dtype) {
  if (dtype == DType::kF16) return __half2float(std::bit_cast<__half>(bits));
  return __bfloat162float(std::bit_cast<__nv_bfloat16>(bits));
}

/// Calls visit(offset in a, offset in b) for every element of two views of one shape.
void for_each_element(const TensorView& a, const TensorView& b,
                      const std::function<void(int64_t, int64_t)>& visit) {
  std::array<int64_t, kMaxRank> index{};
  for (int64_t n = a.num_elements(); n > 0; --n) {
    int64_t a_offset = 0, b_offset = 0;
    for (size_t i = 0; i < static_cast<size_t>(a.rank); ++i) {
      a_offset += index[i] * a.stride[i];
      b_offset += index[i] * b.stride[i];
    }
    visit(a_offset, b_offset);
    for (auto i = static_cast<size_t>(a.rank); i-- > 0;) {
      if (++index[i] < a.shape[i]) break;
      index[i] = 0;
    }
  }
}

}  // namespace

std::string why_no_gpu() { return cuda::why_no_device(0); }

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  cuda::check_cuda(cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 16))),
                   "allocating a test buffer");
  data_ = std::shared_ptr<void>(data, [](void* p) { cudaFree(p); });
}

void DeviceBuffer::upload(const void* source) {
  if (bytes_ == 0) return;
  cuda::check_cuda(
      cudaMemcpy(data_.get(), source, static_cast<size_t>(bytes_), cudaMemcpyHostToDevice),
      "uploading a test buffer");
}

void DeviceBuffer::download(void* destination) const {
  if (bytes_ == 0) return;
  cuda::check_cuda(
      cudaMemcpy(destination, data_.get(), static_cast<size_t>(bytes_), cudaMemcpyDeviceToHost),
      "downloading a test buffer");
}

void round_inputs(const AttentionData& data, DType dtype) {
  const AttentionParams& params = data.params();
  for (const TensorView* view : {&params.q, &params.kv.k, &params.kv.v, &params.periphery.k_mean,
                                 &params.periphery.v_mean}) {
    if (view->empty()) continue;
    for_each_element(*view, *view, [&](int64_t offset, int64_t) {
      set(*view, offset, from_bits(to_bits(get(*view, offset), dtype), dtype));
    });
  }
}

std::string row_difference(const std::vector<float>& actual, const std::vector<float>& expected,
                           int64_t head_dim, DType dtype) {
  const double ulp = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  const std::string overall = difference(actual, expected, {ulp, INFINITY});
  if (!overall.empty()) return overall;
  for (size_t row = 0; row < actual.size(); row += static_cast<size_t>(head_dim)) {
    double error = 0, norm = 0;
    for (size_t i = row; i < row + static_cast<size_t>(head_dim); ++i) {
      if (!std::isfinite(expected[i])) continue;
      error += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
    if (std::sqrt(error) > 2 * ulp * std::sqrt(norm)) {
      return fmt::format("row {}: relative error {} above {}", row / static_cast<size_t>(head_dim),
                         std::sqrt(error / norm), 2 * ulp);
    }
  }
  return "";
}

Context DeviceMirror::context() { return {.device = {DeviceType::kCuda, 0}}; }

DeviceMirror::Layout DeviceMirror::layout_like(const TensorView& host, DType dtype) const {
  Layout layout;
  layout.view = host;
  layout.view.dtype = dtype;
  layout.view.device = context().device;
  std::array<int64_t, kMaxRank> padded = host.shape;
  if (is_padded_) {
    for (int32_t i = 1; i < host.rank; ++i) {
      padded[static_cast<size_t>(i)] += i + 1 == host.rank ? 16 / dtype_bytes(dtype) : 1;
    }
  }
  int64_t stride = 1;
  for (auto i = static_cast<size_t>(host.rank); i-- > 0;) {
    layout.view.stride[i] = stride;
    stride *= padded[i];
  }
  layout.start = kGuard;
  layout.num_elements = stride + 2 * kGuard;
  return layout;
}

TensorView DeviceMirror::mirror_input(const TensorView& host) {
  // Means of f8e4m3 are bf16.
  const DType dtype = dtype_ == DType::kF8E4M3 && host.dtype != dtype_ ? DType::kBF16 : dtype_;
  Layout layout = layout_like(host, dtype);
  if (host.empty()) return layout.view;
  const auto upload = [&]<typename T>(T poison, const auto& value_at) {
    std::vector<T> values(static_cast<size_t>(layout.num_elements), poison);
    for_each_element(host, layout.view, [&](int64_t from, int64_t to) {
      values[static_cast<size_t>(layout.start + to)] = value_at(from);
    });
    buffers_.push_back(DeviceBuffer::copy_of(values.data(), std::ssize(values)));
    layout.view.data = buffers_.back().as<T>() + layout.start;
  };
  if (dtype == DType::kF8E4M3) {
    upload(uint8_t{0x7f}, [&](int64_t at) { return host.as<const uint8_t>()[at]; });
  } else {
    upload(to_bits(NAN, dtype), [&](int64_t at) { return to_bits(get(host, at), dtype); });
  }
  return layout.view;
}

TensorView DeviceMirror::mirror_floats(const TensorView& host) {
  TensorView view = host;
  if (host.empty()) return view;
  view.device = context().device;
  buffers_.push_back(DeviceBuffer::copy_of(host.as<const float>(), host.num_elements()));
  view.data = buffers_.back().as<float>();
  return view;
}

void expect_lse(const std::vector<float>& actual, const std::vector<float>& expected,
                double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << "lse " << i << ": " << actual[i];
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], expected[i]) << "lse " << i;
    } else {
      EXPECT_NEAR(actual[i], expected[i], tolerance * std::max(1.f, std::abs(expected[i])))
          << "lse " << i;
    }
    if (testing::Test::HasFailure()) break;
  }
}

DeviceMirror::DeviceMirror(const AttentionParams& host, DType dtype, bool is_padded)
    : dtype_(dtype),
      out_dtype_(dtype == DType::kF8E4M3 ? DType::kBF16 : dtype),
      is_padded_(is_padded),
      params_(host) {
  const auto keep = [&]<typename T>(const T* source, int64_t count) {
    buffers_.push_back(DeviceBuffer::copy_of(source, count));
    return buffers_.back().as<const T>();
  };
  params_.q = mirror_input(host.q);
  params_.kv.k = mirror_input(host.kv.k);
  params_.kv.v = mirror_input(host.kv.v);
  params_.periphery.k_mean = mirror_input(host.periphery.k_mean);
  params_.periphery.v_mean = mirror_input(host.periphery.v_mean);
  params_.q_scale = mirror_floats(host.q_scale);
  params_.kv.k_scale = mirror_floats(host.kv.k_scale);
  params_.kv.v_scale = mirror_floats(host.kv.v_scale);
  const int64_t batch_size = host.batch.batch_size;
  params_.batch.q_offsets = keep(host.batch.q_offsets, batch_size + 1);
  params_.batch.kv_lens = keep(host.batch.kv_lens, batch_size);
  params_.kv.kv_offsets = keep(host.kv.kv_offsets, batch_size);
  params_.kv.page_table = keep(host.kv.page_table, batch_size * host.kv.page_table_stride);
  params_.periphery.block_offsets = keep(host.periphery.block_offsets, batch_size);
  params_.sinks = mirror_floats(host.sinks);
  if (host.selection != nullptr) {
    selection_ = *host.selection;
    const int64_t num_lists = selection_.num_q_heads * selection_.num_q_blocks;
    selection_.q_block_offsets = keep(host.selection->q_block_offsets, batch_size + 1);
    selection_.begin = keep(host.selection->begin, num_lists);
    selection_.len = keep(host.selection->len, num_lists);
    selection_.blocks = keep(host.selection->blocks, selection_.num_blocks);
    params_.selection = &selection_;
  }
  out_layout_ = layout_like(host.out, out_dtype_);
  lse_layout_ = layout_like(host.lse, DType::kF32);
  out_buffer_ = DeviceBuffer(out_layout_.num_elements * 2);
  lse_buffer_ = DeviceBuffer(lse_layout_.num_elements * 4);
  params_.out = out_layout_.view;
  params_.out.data = out_buffer_.as<uint16_t>() + out_layout_.start;
  params_.lse = lse_layout_.view;
  params_.lse.data = lse_buffer_.as<float>() + lse_layout_.start;
}

void DeviceMirror::run(const AttentionBackend& backend) {
  run([&] { backend.run(params_, context()); });
}

void DeviceMirror::run(const std::function<void()>& launch) {
  std::vector<uint16_t> out(static_cast<size_t>(out_layout_.num_elements));
  std::vector<float> lse(static_cast<size_t>(lse_layout_.num_elements));
  std::memset(out.data(), static_cast<int>(kPoison), out.size() * 2);
  std::memset(lse.data(), static_cast<int>(kPoison), lse.size() * 4);
  const uint16_t out_poison = out[0];
  const auto lse_poison = std::bit_cast<uint32_t>(lse[0]);
  out_buffer_.upload(out.data());
  lse_buffer_.upload(lse.data());
  launch();
  cuda::check_cuda(cudaDeviceSynchronize(), "running attention");
  out_buffer_.download(out.data());
  lse_buffer_.download(lse.data());

  out_values_.clear();
  lse_values_.clear();
  for_each_element(params_.out, params_.out, [&](int64_t offset, int64_t) {
    uint16_t& bits = out[static_cast<size_t>(out_layout_.start + offset)];
    out_values_.push_back(from_bits(bits, out_dtype_));
    bits = out_poison;
  });
  for_each_element(params_.lse, params_.lse, [&](int64_t offset, int64_t) {
    float& value = lse[static_cast<size_t>(lse_layout_.start + offset)];
    lse_values_.push_back(value);
    value = std::bit_cast<float>(lse_poison);
  });
  is_untouched_ = true;
  for (const uint16_t bits : out) is_untouched_ &= bits == out_poison;
  for (const float value : lse) is_untouched_ &= std::bit_cast<uint32_t>(value) == lse_poison;
}

}  // namespace fovea::cases
