#include "tests/cases/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>

#include "fovea/tensor/bfloat16.h"

namespace fovea::cases {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::byte kPoison{0x5a};

// The standard library's distributions differ between implementations; these do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  float normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[engine_() % i]);
  }

 private:
  std::mt19937_64 engine_;
};

// A view of [rows, heads, head_dim] inside a buffer that is wider where `is_strided`.
TensorView slice_rows(const Tensor& buffer, int64_t heads, int64_t head_dim, bool is_strided) {
  TensorView view = buffer.view();
  view.shape[1] = heads;
  view.shape[2] = head_dim;
  if (is_strided) view.data = buffer.as<std::byte>() + 3 * dtype_bytes(view.dtype);
  return view;
}

Tensor make_rows(DType dtype, int64_t rows, int64_t heads, int64_t head_dim, bool is_strided) {
  if (is_strided) return Tensor(dtype, {rows, heads + 1, head_dim + 5});
  return Tensor(dtype, {rows, heads, head_dim});
}

void fill_all(const Tensor& tensor, float value) {
  for (int64_t i = 0; i < tensor.view().num_elements(); ++i) set(tensor.view(), i, value);
}

void fill_normal(const TensorView& view, Random& random) {
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    for (int64_t h = 0; h < view.shape[1]; ++h) {
      for (int64_t d = 0; d < view.shape[2]; ++d) {
        set(view, i * view.stride[0] + h * view.stride[1] + d, random.normal());
      }
    }
  }
}

}  // namespace

float get(const TensorView& view, int64_t offset) {
  return view.dtype == DType::kF32 ? view.as<const float>()[offset]
                                   : to_float(view.as<const BFloat16>()[offset]);
}

void set(const TensorView& view, int64_t offset, float value) {
  if (view.dtype == DType::kF32) {
    view.as<float>()[offset] = value;
  } else {
    view.as<BFloat16>()[offset] = to_bfloat16(value);
  }
}

AttentionData::AttentionData(const AttentionCase& shape, DType dtype, uint64_t seed) {
  make_batch(shape);
  Random random(seed);
  const int64_t total_q = q_offsets_.back();
  q_ = make_rows(dtype, total_q, shape.num_q_heads, shape.head_dim, shape.is_strided);
  out_ = make_rows(dtype, total_q, shape.num_q_heads, shape.head_dim, shape.is_strided);
  lse_ = Tensor(DType::kF32, {shape.num_q_heads, total_q + (shape.is_strided ? 9 : 0)});
  fill_all(q_, kNan);
  params_.q = slice_rows(q_, shape.num_q_heads, shape.head_dim, shape.is_strided);
  fill_normal(params_.q, random);
  params_.out = slice_rows(out_, shape.num_q_heads, shape.head_dim, shape.is_strided);
  params_.lse = lse_.view();
  params_.lse.shape[1] = total_q;
  make_kv(shape, dtype, seed + 1);
  write_non_finite(shape);
  if (shape.has_sinks) {
    sinks_ = Tensor(DType::kF32, {shape.num_q_heads});
    for (int64_t h = 0; h < shape.num_q_heads; ++h) sinks_.as<float>()[h] = random.normal();
    params_.sinks = sinks_.view();
  }
  params_.softmax_scale = shape.softmax_scale;
  params_.window_left = shape.window_left;
  params_.causal = shape.causal;
  if (shape.lists != Lists::kNone) make_selection(shape, seed + 2);
  if (shape.has_periphery) make_periphery(shape, dtype);
  poison();
}

void AttentionData::make_batch(const AttentionCase& shape) {
  q_offsets_ = {0};
  for (const int64_t q_len : shape.q_lens) q_offsets_.push_back(q_offsets_.back() + q_len);
  kv_lens_ = shape.kv_lens;
  params_.batch = {static_cast<int64_t>(kv_lens_.size()), q_offsets_.data(), kv_lens_.data()};
}

void AttentionData::make_kv(const AttentionCase& shape, DType dtype, uint64_t seed) {
  KvView& kv = params_.kv;
  if (shape.page_size == 0) {
    constexpr int64_t kGap = 7;  // NaN rows between sequences
    int64_t rows = kGap;
    for (const int64_t kv_len : kv_lens_) {
      kv_offsets_.push_back(rows);
      rows += kv_len + kGap;
    }
    k_ = make_rows(dtype, rows, shape.num_kv_heads, shape.head_dim, shape.is_strided);
    v_ = make_rows(dtype, rows, shape.num_kv_heads, shape.head_dim, shape.is_strided);
    kv.k = slice_rows(k_, shape.num_kv_heads, shape.head_dim, shape.is_strided);
    kv.v = slice_rows(v_, shape.num_kv_heads, shape.head_dim, shape.is_strided);
    kv.kv_offsets = kv_offsets_.data();
  } else {
    int64_t max_pages = 1, num_pages = 3;  // some pages belong to nobody
    for (const int64_t kv_len : kv_lens_) {
      max_pages = std::max(max_pages, ceil_div(kv_len, shape.page_size) + 1);
      num_pages += ceil_div(kv_len, shape.page_size);
    }
    std::vector<int32_t> free_pages(static_cast<size_t>(num_pages));
    std::iota(free_pages.begin(), free_pages.end(), 0);
    Random(seed).shuffle(free_pages);
    page_table_.assign(kv_lens_.size() * static_cast<size_t>(max_pages), -1);
    for (size_t s = 0; s < kv_lens_.size(); ++s) {
      for (int64_t i = 0; i < ceil_div(kv_lens_[s], shape.page_size); ++i) {
        page_table_[s * static_cast<size_t>(max_pages) + static_cast<size_t>(i)] =
            free_pages.back();
        free_pages.pop_back();
      }
    }
    k_ = Tensor(dtype, {num_pages, shape.num_kv_heads, shape.page_size, shape.head_dim});
    v_ = Tensor(dtype, {num_pages, shape.num_kv_heads, shape.page_size, shape.head_dim});
    kv = {k_.view(), v_.view(), nullptr, page_table_.data(), max_pages, shape.page_size};
  }
  fill_all(k_, kNan);
  fill_all(v_, kNan);
  Random random(seed);
  for (size_t s = 0; s < kv_lens_.size(); ++s) {
    for (int64_t t = 0; t < kv_lens_[s]; ++t) {
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        const int64_t k_offset = key_offset(kv.k, static_cast<int64_t>(s), t, h);
        const int64_t v_offset = key_offset(kv.v, static_cast<int64_t>(s), t, h);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          set(kv.k, k_offset + d, random.normal());
          set(kv.v, v_offset + d, random.normal());
        }
      }
    }
  }
}

void AttentionData::write_non_finite(const AttentionCase& shape) {
  for (const NonFinite& bad : shape.non_finite) {
    const TensorView& view = bad.is_key ? params_.kv.k : params_.kv.v;
    const int64_t offset = key_offset(view, 0, bad.token, 0);
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      if (bad.column < 0 || bad.column == d) set(view, offset + d, bad.value);
    }
  }
}

void AttentionData::make_selection(const AttentionCase& shape, uint64_t seed) {
  Random random(seed);
  BlockSelection& selection = selection_;
  selection.block_size = shape.block_size;
  selection.num_q_heads = shape.num_q_heads;
  selection.q_block_offsets = {0};
  for (size_t s = 0; s < kv_lens_.size(); ++s) {
    const int64_t first = first_q_block(shape.q_lens[s], kv_lens_[s], shape.block_size);
    selection.q_block_offsets.push_back(selection.q_block_offsets.back() +
                                        end_q_block(kv_lens_[s], shape.block_size) - first);
  }
  selection.num_q_blocks = selection.q_block_offsets.back();
  for (int64_t h = 0; h < shape.num_q_heads; ++h) {
    for (size_t s = 0; s < kv_lens_.size(); ++s) {
      const int64_t end = end_q_block(kv_lens_[s], shape.block_size);
      for (int64_t i = first_q_block(shape.q_lens[s], kv_lens_[s], shape.block_size); i < end;
           ++i) {
        const int64_t num_seen = shape.causal ? i + 1 : end;
        const size_t begin = selection.blocks.size();
        const bool is_empty = shape.lists == Lists::kSomeEmpty && (h + i) % 3 == 0;
        for (int64_t b = 0; b < num_seen && !is_empty; ++b) {
          const bool is_drawn = random.uniform() < shape.density || shape.lists == Lists::kAll;
          const bool is_kept = b == i ? shape.lists != Lists::kNoDiagonal : is_drawn;
          if (is_kept) selection.blocks.push_back(static_cast<int32_t>(b));
        }
        selection.begin.push_back(static_cast<int64_t>(begin));
        selection.len.push_back(static_cast<int32_t>(selection.blocks.size() - begin));
        selection.causal_pairs += num_seen;
        selection.kept_pairs += selection.len.back();
      }
    }
  }
  selection_view_ = selection.view();
  params_.selection = &selection_view_;
}

void AttentionData::make_periphery(const AttentionCase& shape, DType dtype) {
  const bool is_paged = shape.page_size > 0;
  int64_t rows = is_paged ? params_.kv.num_pages() : 2;
  for (const int64_t kv_len : kv_lens_) {
    mean_offsets_.push_back(rows);
    if (!is_paged) rows += kv_len / shape.block_size + 1;
  }
  k_mean_ = Tensor(dtype, {rows, shape.num_kv_heads, shape.head_dim});
  v_mean_ = Tensor(dtype, {rows, shape.num_kv_heads, shape.head_dim});
  fill_all(k_mean_, kNan);
  fill_all(v_mean_, kNan);
  params_.periphery = {k_mean_.view(), v_mean_.view(), is_paged ? nullptr : mean_offsets_.data()};
  for (size_t s = 0; s < kv_lens_.size(); ++s) {
    for (int64_t b = 0; b < kv_lens_[s] / shape.block_size; ++b) {
      const int64_t row = is_paged
                              ? page_table_[s * static_cast<size_t>(params_.kv.page_table_stride) +
                                            static_cast<size_t>(b)]
                              : mean_offsets_[s] + b;
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          double k_sum = 0, v_sum = 0;
          for (int64_t t = b * shape.block_size; t < (b + 1) * shape.block_size; ++t) {
            const auto sequence = static_cast<int64_t>(s);
            k_sum += get(params_.kv.k, key_offset(params_.kv.k, sequence, t, h) + d);
            v_sum += get(params_.kv.v, key_offset(params_.kv.v, sequence, t, h) + d);
          }
          const auto count = static_cast<double>(shape.block_size);
          const int64_t offset = (row * shape.num_kv_heads + h) * shape.head_dim + d;
          set(k_mean_.view(), offset, static_cast<float>(k_sum / count));
          set(v_mean_.view(), offset, static_cast<float>(v_sum / count));
        }
      }
    }
  }
}

int64_t AttentionData::key_offset(const TensorView& view, int64_t s, int64_t t, int64_t h) const {
  const KvView& kv = params_.kv;
  if (!kv.is_paged()) return (kv.kv_offsets[s] + t) * view.stride[0] + h * view.stride[1];
  const int64_t page = kv.page_table[s * kv.page_table_stride + t / kv.page_size];
  return page * view.stride[0] + h * view.stride[1] + t % kv.page_size * view.stride[2];
}

void AttentionData::set_key(int64_t s, int64_t t, int64_t h, float value) {
  for (int64_t d = 0; d < params_.head_dim(); ++d) {
    set(params_.kv.k, key_offset(params_.kv.k, s, t, h) + d, value);
  }
}

void AttentionData::set_value(int64_t s, int64_t t, int64_t h, float value) {
  for (int64_t d = 0; d < params_.head_dim(); ++d) {
    set(params_.kv.v, key_offset(params_.kv.v, s, t, h) + d, value);
  }
}

std::vector<float> AttentionData::out() const {
  const TensorView& view = params_.out;
  std::vector<float> values;
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    for (int64_t h = 0; h < view.shape[1]; ++h) {
      for (int64_t d = 0; d < view.shape[2]; ++d) {
        values.push_back(get(view, i * view.stride[0] + h * view.stride[1] + d));
      }
    }
  }
  return values;
}

std::vector<float> AttentionData::lse() const {
  const TensorView& view = params_.lse;
  std::vector<float> values;
  for (int64_t h = 0; h < view.shape[0]; ++h) {
    for (int64_t i = 0; i < view.shape[1]; ++i) values.push_back(get(view, h * view.stride[0] + i));
  }
  return values;
}

void AttentionData::poison() {
  for (const Tensor* tensor : {&out_, &lse_}) {
    if (tensor->size_bytes() == 0) continue;
    std::memset(tensor->as<std::byte>(), static_cast<int>(kPoison),
                static_cast<size_t>(tensor->size_bytes()));
  }
}

bool AttentionData::is_untouched() const {
  for (const Tensor* tensor : {&out_, &lse_}) {
    const TensorView& view = tensor == &out_ ? params_.out : params_.lse;
    std::vector<bool> is_inside(static_cast<size_t>(tensor->view().num_elements()));
    const int64_t start =
        (view.as<std::byte>() - tensor->as<std::byte>()) / dtype_bytes(view.dtype);
    const int64_t inner = view.rank == 3 ? view.shape[2] : 1;
    const int64_t inner_stride = view.rank == 3 ? view.stride[1] : 1;
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      for (int64_t j = 0; j < view.shape[1]; ++j) {
        for (int64_t d = 0; d < inner; ++d) {
          is_inside[static_cast<size_t>(start + i * view.stride[0] + j * inner_stride + d)] = true;
        }
      }
    }
    const int64_t bytes = dtype_bytes(view.dtype);
    for (int64_t i = 0; i < tensor->size_bytes(); ++i) {
      if (is_inside[static_cast<size_t>(i / bytes)]) continue;
      if (tensor->as<std::byte>()[i] != kPoison) return false;
    }
  }
  return true;
}

namespace {

// NaN and Inf where full tiles, diagonal tiles, edges of windows, lists and means treat keys
// differently. They may reach only the rows that see them.
std::vector<AttentionCase> non_finite_cases() {
  const AttentionCase shapes[] = {
      {.name = "dense", .q_lens = {300}, .kv_lens = {300}},
      {.name = "window", .q_lens = {300}, .kv_lens = {300}, .window_left = 50},
      {.name = "lists",
       .q_lens = {300},
       .kv_lens = {300},
       .lists = Lists::kRandom,
       .block_size = 64,
       .density = 0.4},
      {.name = "decode", .q_lens = {1, 4}, .kv_lens = {1500, 300}, .window_left = 120},
      {.name = "small_chunk", .q_lens = {4}, .kv_lens = {300}},
  };
  std::vector<AttentionCase> all;
  for (const AttentionCase& shape : shapes) {
    for (const auto& [name, value] :
         {std::pair{"nan", kNan}, {"inf", kInfinity}, {"minus_inf", -kInfinity}}) {
      for (const int64_t token : {3, 200, 299}) {
        for (const bool is_key : {true, false}) {
          AttentionCase c = shape;
          c.name = fmt::format("{}_{}_{}_{}", shape.name, is_key ? "key" : "value", token, name);
          c.non_finite = {{.value = value, .token = token, .is_key = is_key}};
          all.push_back(std::move(c));
        }
      }
    }
  }
  const auto add = [&](AttentionCase c) { all.push_back(std::move(c)); };
  const std::vector<NonFinite> mixed = {{kNan, 140, false, 1},       {kInfinity, 40, false, 2},
                                        {kInfinity, 150, false, 3},  {-kInfinity, 250, false, 3},
                                        {-kInfinity, 299, false, 4}, {kNan, 270, true}};
  for (const int64_t head_dim : {64, 128, 256}) {
    add({.name = fmt::format("non_finite_{}", head_dim),
         .q_lens = {300},
         .kv_lens = {300},
         .head_dim = head_dim,
         .non_finite = mixed});
  }
  add({.name = "non_finite_chunk_paged_window",
       .q_lens = {150, 20},
       .kv_lens = {300, 90},
       .num_q_heads = 4,
       .window_left = 90,
       .has_sinks = true,
       .page_size = 64,
       .non_finite = mixed});
  add({.name = "non_finite_window_full",
       .q_lens = {300},
       .kv_lens = {300},
       .causal = false,
       .window_left = 64,
       .non_finite = mixed});
  // The window of a single row starts and ends inside tiles.
  add({.name = "non_finite_around_decode",
       .q_lens = {1, 1},
       .kv_lens = {1000, 40},
       .window_left = 400,
       .non_finite = {{kNan, 598}, {kInfinity, 599, false, 5}}});
  add({.name = "non_finite_lists",
       .q_lens = {700},
       .kv_lens = {700},
       .lists = Lists::kRandom,
       .non_finite = mixed});
  // A block's mean is not finite either: it reaches the rows that see the block or its mean.
  for (const int64_t window : {-1, 300}) {
    add({.name = fmt::format("non_finite_means{}", window < 0 ? "" : "_window"),
         .q_lens = {1000},
         .kv_lens = {1000},
         .window_left = window,
         .lists = Lists::kNoDiagonal,
         .has_periphery = true,
         .non_finite = {{kNan, 300, false, 1}, {-kInfinity, 600, false, 2}}});
  }
  return all;
}

std::vector<AttentionCase> make_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) { cases.push_back(std::move(c)); };
  for (const int64_t n : {1, 2, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 300}) {
    add({.name = fmt::format("causal_{}", n), .q_lens = {n}, .kv_lens = {n}});
  }
  for (const int64_t head_dim : {64, 80, 96, 128, 256}) {
    add({.name = fmt::format("head_dim_{}", head_dim),
         .q_lens = {270},
         .kv_lens = {270},
         .head_dim = head_dim});
    add({.name = fmt::format("head_dim_{}_decode", head_dim),
         .q_lens = {1, 1},
         .kv_lens = {270, 1100},
         .head_dim = head_dim,
         .num_q_heads = 4,
         .num_kv_heads = 2});
    add({.name = fmt::format("head_dim_{}_sparse", head_dim),
         .q_lens = {500},
         .kv_lens = {500},
         .head_dim = head_dim,
         .lists = Lists::kRandom,
         .block_size = 64,
         .has_periphery = true});
  }
  for (const int64_t group : {1, 2, 3, 4, 5, 6, 7, 8}) {
    add({.name = fmt::format("group_{}", group),
         .q_lens = {70},
         .kv_lens = {70},
         .num_q_heads = 2 * group,
         .num_kv_heads = 2});
    add({.name = fmt::format("group_{}_decode", group),
         .q_lens = {1, 1, 1},
         .kv_lens = {3000, 1, 129},
         .num_q_heads = 2 * group,
         .num_kv_heads = 2});
  }
  add({.name = "one_kv_head_of_16", .q_lens = {40, 1}, .kv_lens = {90, 77}, .num_q_heads = 16});
  add({.name = "ragged",
       .q_lens = {5, 0, 130, 1, 64, 0, 33},
       .kv_lens = {5, 0, 130, 1, 64, 7, 33}});
  add({.name = "ragged_chunks",
       .q_lens = {5, 0, 130, 1, 64, 2, 3},
       .kv_lens = {205, 10, 513, 1, 65, 400, 0},
       .num_q_heads = 6,
       .num_kv_heads = 2});
  add({.name = "no_rows", .q_lens = {0, 0}, .kv_lens = {0, 12}});
  add({.name = "no_sequences"});
  add({.name = "chunk", .q_lens = {100}, .kv_lens = {450}});
  add({.name = "small_chunks",
       .q_lens = {2, 3, 4, 5, 6, 7, 8, 9},
       .kv_lens = {2000, 300, 4, 1024, 1025, 99, 640, 641},
       .num_q_heads = 3});
  add({.name = "non_causal", .q_lens = {90, 20}, .kv_lens = {300, 5}, .causal = false});
  add({.name = "non_causal_decode", .q_lens = {1, 3}, .kv_lens = {2300, 5}, .causal = false});
  for (const int64_t window : {0, 1, 31, 64, 127, 128, 200}) {
    add({.name = fmt::format("window_{}", window),
         .q_lens = {300, 40},
         .kv_lens = {300, 1200},
         .window_left = window});
  }
  add({.name = "window_decode",
       .q_lens = {1, 1, 4},
       .kv_lens = {3000, 50, 2200},
       .window_left = 900});
  add({.name = "window_non_causal",
       .q_lens = {200},
       .kv_lens = {350},
       .causal = false,
       .window_left = 64});
  add({.name = "window_non_causal_decode",
       .q_lens = {1, 3},
       .kv_lens = {2300, 900},
       .causal = false,
       .window_left = 700});
  add({.name = "sinks", .q_lens = {150, 1}, .kv_lens = {150, 1500}, .has_sinks = true});
  add({.name = "sinks_window",
       .q_lens = {150, 1, 2},
       .kv_lens = {200, 1500, 0},
       .window_left = 70,
       .has_sinks = true});
  add({.name = "scale_large", .q_lens = {200}, .kv_lens = {200}, .softmax_scale = 3.0f});
  add({.name = "scale_small", .q_lens = {200}, .kv_lens = {200}, .softmax_scale = 1e-4f});
  for (const int64_t page_size : {1, 16, 48, 64, 128, 256}) {
    add({.name = fmt::format("paged_{}", page_size),
         .q_lens = {140, 1, 0, 33},
         .kv_lens = {300, 1300, 20, 33},
         .num_q_heads = 4,
         .num_kv_heads = 2,
         .page_size = page_size});
  }
  add({.name = "strided",
       .q_lens = {140, 1},
       .kv_lens = {300, 1300},
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .is_strided = true});
  const std::pair<const char*, Lists> kinds[] = {{"all", Lists::kAll},
                                                 {"random", Lists::kRandom},
                                                 {"no_diagonal", Lists::kNoDiagonal},
                                                 {"some_empty", Lists::kSomeEmpty}};
  for (const auto& [name, lists] : kinds) {
    for (const bool has_periphery : {false, true}) {
      const std::string suffix = has_periphery ? "_periphery" : "";
      add({.name = fmt::format("lists_{}{}", name, suffix),
           .q_lens = {700},
           .kv_lens = {700},
           .lists = lists,
           .has_periphery = has_periphery});
      add({.name = fmt::format("lists_{}_chunks_paged{}", name, suffix),
           .q_lens = {200, 1, 0, 128, 90},
           .kv_lens = {777, 600, 130, 256, 90},
           .num_q_heads = 3,
           .window_left = lists == Lists::kRandom ? 333 : -1,
           .has_sinks = lists == Lists::kSomeEmpty,
           .page_size = 64,
           .lists = lists,
           .block_size = 64,
           .has_periphery = has_periphery});
    }
  }
  for (const int64_t block_size : {16, 48, 100, 256}) {
    add({.name = fmt::format("block_size_{}", block_size),
         .q_lens = {411},
         .kv_lens = {600},
         .lists = Lists::kRandom,
         .block_size = block_size,
         .has_periphery = true});
  }
  add({.name = "lists_non_causal",
       .q_lens = {300},
       .kv_lens = {600},
       .causal = false,
       .lists = Lists::kRandom});
  add({.name = "lists_decode",
       .q_lens = {1, 1},
       .kv_lens = {2000, 129},
       .num_q_heads = 6,
       .num_kv_heads = 2,
       .lists = Lists::kRandom,
       .has_periphery = true});
  for (const int64_t q_len : {1, 3}) {
    add({.name = fmt::format("lists_decode_{}_in_place", q_len),
         .q_lens = {q_len, q_len, q_len},
         .kv_lens = {2000, 129 + q_len, 1100},
         .num_q_heads = 6,
         .num_kv_heads = 2,
         .window_left = q_len == 1 ? -1 : 700,
         .has_sinks = q_len == 3,
         .page_size = 64,
         .lists = Lists::kSomeEmpty});
  }
  for (const int64_t block_size : {16, 1024}) {  // blocks far shorter and longer than a split
    add({.name = fmt::format("lists_decode_blocks_of_{}", block_size),
         .q_lens = {2, 1},
         .kv_lens = {3000, 1025},
         .num_q_heads = 8,
         .num_kv_heads = 2,
         .page_size = 16,
         .lists = Lists::kRandom,
         .block_size = block_size,
         .density = 0.5});
  }
  add({.name = "many_means",
       .q_lens = {64},
       .kv_lens = {2600},
       .lists = Lists::kRandom,
       .block_size = 8,
       .density = 0.05,
       .has_periphery = true});
  for (const AttentionCase& c : non_finite_cases()) add(c);
  return cases;
}

}  // namespace

const std::vector<AttentionCase>& attention_cases() {
  static const std::vector<AttentionCase> cases = make_cases();
  return cases;
}

}  // namespace fovea::cases
