#include "fovea/attention/cpu/prefill.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "fovea/attention/code_pages.h"
#include "fovea/attention/cpu/decode.h"
#include "fovea/attention/cpu/rows.h"
#include "fovea/attention/cpu/scratch.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::cpu {
namespace {

constexpr int64_t kMaxRowBytes = 256 * 4;  // of K or V

// Rows of K and V of one (sequence, KV head), or of its blocks' means, on their way to the tiles.
struct Source {
  int64_t num_keys = 0;
  bool has_keys_in_place = false;      // whole groups of K are read where they are
  std::vector<const std::byte*> keys;  // per group: in the kernel's layout
  std::byte* packed_keys = nullptr;    // for those that are not in place
  std::byte* packed_values = nullptr;  // all groups
  std::vector<uint8_t> is_needed;      // per group: some tile reads it
  std::vector<uint8_t> is_non_finite;  // per group: a value is NaN or Inf, packed as 0

  int64_t num_groups() const { return ceil_div(num_keys, kGroupKeys); }
  // The last group is not whole, so that reading it in place could pass the end of the memory.
  int64_t num_packed_key_groups() const {
    return has_keys_in_place ? (num_keys % kGroupKeys != 0 ? 1 : 0) : num_groups();
  }
};

struct Unit {
  int64_t sequence, kv_head;
  int64_t first_row, q_len, kv_len;
  Source keys, means;
  std::atomic<bool> any_non_finite{false};
};

// Rows [first, first + num) of a unit: row r is query token r / num_heads of head
// first_head + r % num_heads, so short sequences fill a tile with the heads of a group.
struct TileTask {
  Unit* unit;
  int64_t first, num;
  int64_t first_head, num_heads;
};

class Prefill {
 public:
  Prefill(const TileKernel& kernel, const AttentionParams& params, const Context& context)
      : kernel_(kernel),
        params_(params),
        context_(context),
        key_group_bytes_(kernel.key_group_bytes(params.head_dim())),
        value_group_bytes_(kernel.value_group_bytes(params.head_dim())),
        scratch_bytes_(kernel.scratch_bytes(params.head_dim())),
        scratch_(checked_mul(scratch_bytes_, resolve_num_threads(context), "scratch")) {}

  void run() {
    const int64_t num_units = params_.batch.batch_size * params_.kv.num_kv_heads();
    for (int64_t first = 0; first < num_units;) {
      std::deque<Unit> wave;
      int64_t num_bytes = 0;
      for (; first < num_units; ++first) {
        const int64_t unit_bytes = add_unit(first, num_bytes, wave);
        if (unit_bytes < 0) break;
        num_bytes += unit_bytes;
      }
      if (!wave.empty()) run_wave(wave, num_bytes);
    }
  }

 private:
  // Appends a unit if the wave has room for it; returns its bytes, or -1.
  int64_t add_unit(int64_t unit_idx, int64_t wave_bytes, std::deque<Unit>& wave) const {
    const int64_t s = unit_idx / params_.kv.num_kv_heads();
    const int64_t first_row = params_.batch.q_offsets[s];
    const int64_t q_len = params_.batch.q_offsets[s + 1] - first_row;
    const int64_t kv_len = params_.batch.kv_lens[s];
    if (q_len == 0 || is_decode(params_, s)) return 0;
    const int64_t num_means =
        params_.periphery.enabled() ? kv_len / params_.selection->block_size : 0;
    Source keys, means;
    keys.num_keys = kv_len;
    keys.has_keys_in_place = keys_are_in_place();
    means.num_keys = num_means;
    int64_t num_bytes = 0;
    for (const Source* source : {&keys, &means}) {
      num_bytes += checked_mul(source->num_packed_key_groups(), key_group_bytes_, "packed keys") +
                   checked_mul(source->num_groups(), value_group_bytes_, "packed values");
    }
    if (wave_bytes > 0 && wave_bytes + num_bytes > kMaxPackedBytes) return -1;
    Unit& unit = wave.emplace_back();
    unit.sequence = s;
    unit.kv_head = unit_idx % params_.kv.num_kv_heads();
    unit.first_row = first_row;
    unit.q_len = q_len;
    unit.kv_len = kv_len;
    unit.keys = std::move(keys);
    unit.means = std::move(means);
    return num_bytes;
  }

  // Whether kGroupKeys rows of K lie one after the other as the kernel wants them: unpadded, of its
  // own type.
  bool keys_are_in_place() const {
    const KvView& kv = params_.kv;
    const int64_t row_stride = kv.is_paged() ? kv.k.stride[2] : kv.k.stride[0];
    const int64_t row_bytes = params_.head_dim() * dtype_bytes(kv.k.dtype);
    return row_stride == params_.head_dim() && row_bytes * kGroupKeys == key_group_bytes_ &&
           (!kv.is_paged() || kv.page_size % kGroupKeys == 0);
  }

  void run_wave(std::deque<Unit>& wave, int64_t num_bytes) {
    const Scratch packed(num_bytes);
    std::byte* next = packed.data();
    for (Unit& unit : wave) {
      for (Source* source : {&unit.keys, &unit.means}) {
        source->keys.resize(static_cast<size_t>(source->num_groups()));
        source->packed_keys = next;
        next += source->num_packed_key_groups() * key_group_bytes_;
        source->packed_values = next;
        next += source->num_groups() * value_group_bytes_;
        source->is_non_finite.assign(static_cast<size_t>(source->num_groups()), 0);
      }
      mark_needed(unit);
    }
    pack_wave(wave);
    const std::vector<TileTask> tasks = make_tasks(wave);
    // Tiles side by side take about as long, so each thread gets every num_threads-th.
    const auto num_threads = static_cast<size_t>(resolve_num_threads(context_));
    parallel_for(context_, static_cast<int64_t>(tasks.size()), [&](int64_t i, int32_t thread) {
      const size_t task = static_cast<size_t>(i), later = task + num_threads;
      run_tile(tasks[task], later < tasks.size() ? &tasks[later] : nullptr,
               scratch_.data() + scratch_bytes_ * thread);
    });
  }

  int64_t list_index(const Unit& unit, int64_t head, int64_t q_block) const {
    const BlockSelectionView& selection = *params_.selection;
    return selection.list(head, unit.sequence,
                          q_block - first_q_block(unit.q_len, unit.kv_len, selection.block_size));
  }

  void mark_needed(Unit& unit) const {
    unit.means.is_needed.assign(static_cast<size_t>(unit.means.num_groups()), 1);
    std::vector<uint8_t>& is_needed = unit.keys.is_needed;
    is_needed.assign(static_cast<size_t>(unit.keys.num_groups()), 0);
    const int64_t first_position = unit.kv_len - unit.q_len;
    const int64_t begin = visible_keys(params_, first_position, unit.kv_len).begin;
    const int64_t end = visible_keys(params_, unit.kv_len - 1, unit.kv_len).end;
    const auto mark = [&](int64_t first_key, int64_t end_key) {
      first_key = std::max(first_key, begin);
      end_key = std::min(end_key, end);
      if (first_key >= end_key) return;
      std::fill(is_needed.begin() + first_key / kGroupKeys,
                is_needed.begin() + ceil_div(end_key, kGroupKeys), uint8_t{1});
    };
    if (params_.selection == nullptr) {
      mark(begin, end);
      return;
    }
    const BlockSelectionView& selection = *params_.selection;
    const int64_t block_size = selection.block_size;
    const int64_t group_size = params_.group_size();
    for (int64_t h = unit.kv_head * group_size; h < (unit.kv_head + 1) * group_size; ++h) {
      for (int64_t i = first_q_block(unit.q_len, unit.kv_len, block_size);
           i < end_q_block(unit.kv_len, block_size); ++i) {
        const int64_t list = list_index(unit, h, i);
        for (int32_t j = 0; j < selection.len[list]; ++j) {
          const int64_t b = selection.blocks[selection.begin[list] + j];
          mark(b * block_size, (b + 1) * block_size);
        }
      }
    }
  }

  void pack_wave(std::deque<Unit>& wave) const {
    constexpr int64_t kGroupsPerTask = 16;
    struct PackTask {
      Unit* unit;
      Source* source;
      int64_t first_group;
    };
    std::vector<PackTask> tasks;
    for (Unit& unit : wave) {
      for (Source* source : {&unit.keys, &unit.means}) {
        for (int64_t g = 0; g < source->num_groups(); g += kGroupsPerTask) {
          tasks.push_back({&unit, source, g});
        }
      }
    }
    parallel_for(context_, static_cast<int64_t>(tasks.size()), [&](int64_t i, int32_t) {
      const PackTask& task = tasks[static_cast<size_t>(i)];
      const int64_t end = std::min(task.first_group + kGroupsPerTask, task.source->num_groups());
      for (int64_t g = task.first_group; g < end; ++g) {
        if (task.source->is_needed[static_cast<size_t>(g)] != 0) {
          pack_group(*task.unit, *task.source, g);
        }
      }
    });
  }

  const std::byte* source_row(const Unit& unit, const Source& source, bool is_value,
                              int64_t key) const {
    if (&source == &unit.means) {
      return mean_row(params_, is_value ? params_.periphery.v_mean : params_.periphery.k_mean,
                      unit.sequence, unit.kv_head, key);
    }
    return key_row(params_.kv, is_value ? params_.kv.v : params_.kv.k, unit.sequence, unit.kv_head,
                   key);
  }

  void pack_group(Unit& unit, Source& source, int64_t group) const {
    PackJob job;
    job.head_dim = params_.head_dim();
    job.is_bf16 = params_.q.dtype == DType::kBF16;
    const int64_t first_key = group * kGroupKeys;
    job.num_keys = static_cast<int32_t>(std::min(kGroupKeys, source.num_keys - first_key));
    alignas(64) std::byte numbers[2 * kGroupKeys * kMaxRowBytes];
    if (params_.kv.holds_codes() && &source == &unit.keys) {
      const int64_t row_bytes = job.head_dim * dtype_bytes(params_.q.dtype);
      std::byte* const values = numbers + job.num_keys * row_bytes;
      read_code_rows(params_.kv, unit.sequence, unit.kv_head, first_key, job.num_keys,
                     params_.q.dtype, numbers, values);
      for (int64_t t = 0; t < job.num_keys; ++t) {
        job.k[t] = numbers + t * row_bytes;
        job.v[t] = values + t * row_bytes;
      }
    } else if (&source == &unit.keys) {
      const KvView& kv = params_.kv;
      list_key_rows(kv, kv.k, unit.sequence, unit.kv_head, first_key, job.num_keys, job.k);
      list_key_rows(kv, kv.v, unit.sequence, unit.kv_head, first_key, job.num_keys, job.v);
    } else {
      for (int64_t t = 0; t < job.num_keys; ++t) {
        job.k[t] = source_row(unit, source, false, first_key + t);
        job.v[t] = source_row(unit, source, true, first_key + t);
      }
    }
    const bool in_place = source.has_keys_in_place && job.num_keys == kGroupKeys;
    std::byte* const packed_keys =
        source.packed_keys + (source.has_keys_in_place ? 0 : group * key_group_bytes_);
    source.keys[static_cast<size_t>(group)] = in_place ? job.k[0] : packed_keys;
    const bool is_non_finite = kernel_.pack(job, in_place ? nullptr : packed_keys,
                                            source.packed_values + group * value_group_bytes_);
    if (!is_non_finite) return;
    source.is_non_finite[static_cast<size_t>(group)] = 1;
    unit.any_non_finite.store(true, std::memory_order_relaxed);
  }

  // Longest tiles first, so that no thread is left alone with one at the end.
  std::vector<TileTask> make_tasks(std::deque<Unit>& wave) const {
    std::vector<TileTask> tasks;
    const int64_t group_size = params_.group_size();
    for (Unit& unit : wave) {
      const int64_t first_head = unit.kv_head * group_size;
      if (params_.selection == nullptr && unit.q_len < kernel_.tile_rows) {
        for (int64_t r = 0; r < unit.q_len * group_size; r += kernel_.tile_rows) {
          const int64_t num = std::min<int64_t>(kernel_.tile_rows, unit.q_len * group_size - r);
          tasks.push_back({&unit, r, num, first_head, group_size});
        }
        continue;
      }
      const int64_t block_size = params_.selection != nullptr ? params_.selection->block_size : 0;
      const int64_t first_position = unit.kv_len - unit.q_len;
      for (int64_t r = 0, num = 0; r < unit.q_len; r += num) {
        num = std::min<int64_t>(kernel_.tile_rows, unit.q_len - r);
        if (block_size > 0) {  // a tile has one list: it ends with its query block
          num = std::min(num, block_size - (first_position + r) % block_size);
        }
        for (int64_t h = 0; h < group_size; ++h) {
          tasks.push_back({&unit, r, num, first_head + h, 1});
        }
      }
    }
    const auto last_position = [](const TileTask& task) {
      return task.unit->kv_len - task.unit->q_len + (task.first + task.num - 1) / task.num_heads;
    };
    std::stable_sort(tasks.begin(), tasks.end(), [&](const TileTask& a, const TileTask& b) {
      return last_position(a) > last_position(b);
    });
    return tasks;
  }

  // Everything run_tile hands to the kernel by pointer.
  struct TileState {
    const std::byte* q[kMaxTileRows];
    const std::byte* next_q[kMaxTileRows];
    std::byte* out[kMaxTileRows];
    float* lse[kMaxTileRows];
    float sinks[kMaxTileRows];
    int32_t begin[kMaxTileRows], end[kMaxTileRows];
    int32_t mean_begin[kMaxTileRows], mean_end[kMaxTileRows];
    std::vector<KeyGroup> groups, mean_groups;
  };

  static TilePass pass_over(const Source& source, const std::vector<KeyGroup>& groups,
                            const int32_t* begin, const int32_t* end) {
    TilePass pass;
    pass.keys = source.keys.data();
    pass.values = source.packed_values;
    pass.groups = groups.data();
    pass.num_groups = std::ssize(groups);
    pass.begin = begin;
    pass.end = end;
    return pass;
  }

  // Calls body(index in the tile, row of q, q head).
  template <class Body>
  static void for_each_row(const TileTask& task, Body&& body) {
    int64_t token = task.first / task.num_heads, head = task.first % task.num_heads;
    for (int64_t i = 0; i < task.num; ++token, head = 0) {
      for (; head < task.num_heads && i < task.num; ++head, ++i) {
        body(i, task.unit->first_row + token, task.first_head + head);
      }
    }
  }

  // `next` is the tile whose queries are worth fetching, or null.
  void run_tile(const TileTask& task, const TileTask* next, std::byte* scratch) const {
    TileState state;
    const Unit& unit = *task.unit;
    // One loop for each array: short enough for the compiler to keep its constants in registers.
    const RowAddress q(params_.q), out(params_.out);
    const auto list_queries = [&](const TileTask& tile, const std::byte** rows) {
      for_each_row(tile, [&](int64_t i, int64_t row, int64_t head) { rows[i] = q(row, head); });
    };
    list_queries(task, state.q);
    if (next != nullptr) list_queries(*next, state.next_q);
    for_each_row(task,
                 [&](int64_t i, int64_t row, int64_t head) { state.out[i] = out(row, head); });
    const int64_t first_position = unit.kv_len - unit.q_len - unit.first_row;
    for_each_row(task, [&](int64_t i, int64_t row, int64_t) {
      const KeyRange range = visible_keys(params_, first_position + row, unit.kv_len);
      state.begin[i] = range.begin;
      state.end[i] = range.end;
    });
    std::fill_n(state.lse, task.num, nullptr);
    if (!params_.lse.empty()) {
      const TensorView& lse = params_.lse;
      for_each_row(task, [&](int64_t i, int64_t row, int64_t head) {
        state.lse[i] = lse.as<float>() + head * lse.stride[0] + row;
      });
    }
    if (!params_.sinks.empty()) {
      const auto* const sinks = params_.sinks.as<const float>();
      for_each_row(task, [&](int64_t i, int64_t, int64_t head) { state.sinks[i] = sinks[head]; });
    }
    list_groups(task, state);
    TilePass passes[2];
    int32_t num_passes = 0;
    if (!state.mean_groups.empty()) {
      const auto block_size = static_cast<float>(params_.selection->block_size);
      TilePass& pass = passes[num_passes++];
      pass = pass_over(unit.means, state.mean_groups, state.mean_begin, state.mean_end);
      pass.logit_bias = std::log(block_size) / params_.scale();
    }
    passes[num_passes++] = pass_over(unit.keys, state.groups, state.begin, state.end);
    TileJob job;
    job.head_dim = params_.head_dim();
    job.is_bf16 = params_.q.dtype == DType::kBF16;
    job.softmax_scale = params_.scale();
    job.num_rows = static_cast<int32_t>(task.num);
    job.q = state.q;
    job.passes = passes;
    job.num_passes = num_passes;
    job.sinks = params_.sinks.empty() ? nullptr : state.sinks;
    job.out = state.out;
    job.lse = state.lse;
    job.next_q = state.next_q;
    job.num_next_rows = next == nullptr ? 0 : static_cast<int32_t>(next->num);
    kernel_.attend(job, scratch);
    if (unit.any_non_finite.load(std::memory_order_relaxed)) {
      add_non_finite(unit, unit.keys, state.groups, task.num, state.begin, state.end, state.out);
      add_non_finite(unit, unit.means, state.mean_groups, task.num, state.mean_begin,
                     state.mean_end, state.out);
    }
  }

  // Fills the tile's groups; rows ascend in position, so the first row's end and the last row's
  // begin are the tightest.
  void list_groups(const TileTask& task, TileState& state) const {
    const Unit& unit = *task.unit;
    const int64_t last = task.num - 1;
    const int32_t begin = state.begin[0], end = state.end[last];
    if (params_.selection == nullptr) {
      for (int64_t key = begin / kGroupKeys * kGroupKeys; key < end; key += kGroupKeys) {
        state.groups.push_back({static_cast<int32_t>(key / kGroupKeys), ~0u});
      }
      return;
    }
    const BlockSelectionView& selection = *params_.selection;
    const int64_t block_size = selection.block_size;
    const int64_t q_block = (unit.kv_len - unit.q_len + task.first) / block_size;
    const int64_t list = list_index(unit, task.first_head, q_block);
    const int32_t* blocks = selection.blocks + selection.begin[list];
    state.groups.reserve(static_cast<size_t>(selection.len[list] * (block_size / kGroupKeys + 2)));
    for (int32_t j = 0; j < selection.len[list]; ++j) {
      const int64_t first_key = std::max<int64_t>(blocks[j] * block_size, begin);
      const int64_t end_key = std::min<int64_t>((blocks[j] + int64_t{1}) * block_size, end);
      for (int64_t key = first_key; key < end_key;) {
        const int64_t group = key / kGroupKeys;
        const int64_t group_end = std::min((group + 1) * kGroupKeys, end_key);
        const auto low = static_cast<uint32_t>(key % kGroupKeys);
        const auto num = static_cast<uint32_t>(group_end - key);
        const uint32_t keys = (num == 32 ? ~0u : (1u << num) - 1) << low;
        if (!state.groups.empty() && state.groups.back().index == group) {
          state.groups.back().keys |= keys;
        } else {
          state.groups.push_back({static_cast<int32_t>(group), keys});
        }
        key = group_end;
      }
    }
    if (params_.periphery.enabled())
      list_mean_groups(task, q_block, {blocks, static_cast<size_t>(selection.len[list])}, state);
  }

  // Means of the blocks before `q_block` that are not in the list.
  void list_mean_groups(const TileTask& task, int64_t q_block, std::span<const int32_t> blocks,
                        TileState& state) const {
    const int64_t block_size = params_.selection->block_size;
    for (int64_t i = 0; i < task.num; ++i) {
      state.mean_begin[i] = static_cast<int32_t>(ceil_div(state.begin[i], block_size));
      state.mean_end[i] = static_cast<int32_t>(q_block);
    }
    const int64_t begin = state.mean_begin[0];
    for (int64_t group = begin / kGroupKeys; group * kGroupKeys < q_block; ++group) {
      state.mean_groups.push_back({static_cast<int32_t>(group), ~0u});
    }
    for (const int32_t b : blocks) {
      const int64_t i = b / kGroupKeys - begin / kGroupKeys;
      if (i < 0 || i >= static_cast<int64_t>(state.mean_groups.size())) continue;
      state.mean_groups[static_cast<size_t>(i)].keys &= ~(1u << (b % kGroupKeys));
    }
    std::erase_if(state.mean_groups, [](const KeyGroup& group) { return group.keys == 0; });
  }

  // The row of a value in q's type: where it lies or, out of f8e4m3, in `numbers`.
  const std::byte* readable_value(const Unit& unit, const Source& source, int64_t key,
                                  std::byte* numbers) const {
    const KvView& kv = params_.kv;
    if (!kv.holds_codes() || &source == &unit.means) {
      return source_row(unit, source, true, key);
    }
    const int64_t page = kv.page_table[unit.sequence * kv.page_table_stride + key / kv.page_size];
    read_code_values(kv, page, unit.kv_head, key % kv.page_size, 1,
                     {params_.q.dtype, numbers, kMaxRowBytes});
    return numbers;
  }

  // NaN and Inf values were packed as zeros: adds them to the rows that see them.
  void add_non_finite(const Unit& unit, const Source& source, const std::vector<KeyGroup>& groups,
                      int64_t num_rows, const int32_t* begin, const int32_t* end,
                      std::byte* const* out) const {
    const bool is_bf16 = params_.q.dtype == DType::kBF16;
    const auto load = [&](const std::byte* row, int64_t d) {
      return is_bf16 ? to_float(reinterpret_cast<const BFloat16*>(row)[d])
                     : reinterpret_cast<const float*>(row)[d];
    };
    for (const KeyGroup& group : groups) {
      if (source.is_non_finite[static_cast<size_t>(group.index)] == 0) continue;
      for (int64_t t = 0; t < kGroupKeys; ++t) {
        const int64_t key = group.index * kGroupKeys + t;
        if ((group.keys >> t & 1u) == 0 || key >= source.num_keys) continue;
        std::byte numbers[kMaxRowBytes];
        const std::byte* const value_row = readable_value(unit, source, key, numbers);
        for (int64_t d = 0; d < params_.head_dim(); ++d) {
          const float value = load(value_row, d);
          if (std::isfinite(value)) continue;
          for (int64_t r = 0; r < num_rows; ++r) {
            if (key < begin[r] || key >= end[r]) continue;
            const float sum = load(out[r], d) + value;
            if (is_bf16) {
              reinterpret_cast<BFloat16*>(out[r])[d] = to_bfloat16(sum);
            } else {
              reinterpret_cast<float*>(out[r])[d] = sum;
            }
          }
        }
      }
    }
  }

  const TileKernel& kernel_;
  const AttentionParams& params_;
  const Context& context_;
  const int64_t key_group_bytes_;
  const int64_t value_group_bytes_;
  const int64_t scratch_bytes_;
  const Scratch scratch_;
};

}  // namespace

void prefill(const TileKernel& kernel, const AttentionParams& params, const Context& context) {
  Prefill(kernel, params, context).run();
}

}  // namespace fovea::cpu
