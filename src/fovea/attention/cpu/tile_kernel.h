// What the tile walk (prefill.cc, plain C++) and the kernels (one file per instruction set) say to
// each other. A tile is a few query rows that see the same KV head; keys come in packed groups.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

constexpr int64_t kGroupKeys = 32;
constexpr int32_t kMaxTileRows = 128;

/// Some keys that a tile reads: bit i of `keys` is key kGroupKeys * index + i.
struct KeyGroup {
  int32_t index;
  uint32_t keys;
};

/// One walk over the keys of a (sequence, KV head), or over the means of its blocks. K and V are in
/// the kernel's own layout: K wherever each group is, V one group after the other.
struct TilePass {
  const std::byte* const* keys = nullptr;  // by group index
  const std::byte* values = nullptr;
  const KeyGroup* groups = nullptr;  // [num_groups]
  int64_t num_groups = 0;
  const int32_t* begin = nullptr;  // [num_rows]: row r sees keys [begin[r], end[r]) of the listed,
  const int32_t* end = nullptr;    // both ascending with r
  float logit_bias = 0;            // added to q.k, before the softmax scale
};

struct TileJob {
  int64_t head_dim = 0;
  bool is_bf16 = false;
  float softmax_scale = 0;
  int32_t num_rows = 0;
  const std::byte* const* q = nullptr;  // [num_rows]
  const TilePass* passes = nullptr;     // [num_passes]
  int32_t num_passes = 0;
  const float* sinks = nullptr;     // [num_rows]; null without sinks
  std::byte* const* out = nullptr;  // [num_rows]
  float* const* lse = nullptr;      // [num_rows]; all null where nobody asks
  /// Rows that the thread will probably read next: fetched into the cache beside the products.
  const std::byte* const* next_q = nullptr;  // [num_next_rows]
  int32_t num_next_rows = 0;
};

/// Up to kGroupKeys rows of K and V on their way into the packed layout.
struct PackJob {
  int64_t head_dim = 0;
  bool is_bf16 = false;
  int32_t num_keys = 0;
  const std::byte* k[kGroupKeys];
  const std::byte* v[kGroupKeys];
};

/// kGroupKeys keys and values that are codes in one page: rows of K k_stride bytes apart, V turned,
/// its channels v_stride bytes apart.
struct CodeGroup {
  const std::byte *k, *v;
  int64_t k_stride, v_stride;
  float k_scale, v_scale;
};

/// A few query rows against some keys of one KV head, straight from where the keys are: decode
/// reads every key once and is bound by memory, so nothing is packed. Weights come first, then the
/// values that they are for.
struct DecodeJob {
  int64_t head_dim = 0;
  bool is_bf16 = false;
  float softmax_scale = 0;
  int32_t num_rows = 0;                 // up to kMaxDecodeRows
  const std::byte* const* q = nullptr;  // [num_rows]
  int32_t num_keys = 0;                 // up to kSplitKeys
  const std::byte* const* k = nullptr;  // [num_keys]
  const std::byte* const* v = nullptr;
  /// In place of k and v: groups of all units that hold keys; those past the last key are read, to
  /// no effect.
  const CodeGroup* codes = nullptr;
  bool codes_are_i8 = false;       // else f8e4m3
  const int32_t* begin = nullptr;  // [num_rows]: row r sees keys [begin[r], end[r]) of these
  const int32_t* end = nullptr;
  /// [num_rows, kSplitKeys] in room for padded_decode_rows(): exp(softmax_scale * (q.k - max)), 0
  /// where a row does not see the key.
  float* weights = nullptr;
  float* max = nullptr;       // [num_rows], of q.k, -inf where a row sees nothing
  float* sum = nullptr;       // [num_rows], of the weights
  float* unit_sum = nullptr;  // [num_rows, kSplitUnits]: the same of kUnitKeys keys each
  uint32_t units = 0;         // bit i: the values of the i-th kUnitKeys keys are read
  float* out = nullptr;       // [num_rows, head_dim]: weights times values, not divided by the sum
};
constexpr int32_t kMaxDecodeRows = 16;
constexpr int32_t kSplitKeys = 512;
constexpr int32_t kUnitKeys = 64;
constexpr int32_t kSplitUnits = kSplitKeys / kUnitKeys;
constexpr int64_t padded_decode_rows(int64_t num_rows) { return (num_rows + 3) / 4 * 4; }

/// One instruction set. Keys and values are packed with zeros beyond num_keys, and with zeros for
/// NaN and Inf values, so that a weight of 0 hides whatever it must (0 x NaN is NaN): such values
/// are added to the rows that see them afterwards.
struct TileKernel {
  int32_t tile_rows;
  bool (*supports)(int64_t head_dim, bool is_bf16);
  int64_t (*key_group_bytes)(int64_t head_dim);
  int64_t (*value_group_bytes)(int64_t head_dim);
  int64_t (*scratch_bytes)(int64_t head_dim);  // of one thread, 64-byte aligned
  /// Rows of K that lie one after the other, unpadded and of the kernel's own type, are in its
  /// layout already: `keys` may then be null. Returns whether a value was NaN or Inf.
  bool (*pack)(const PackJob& job, std::byte* keys, std::byte* values);
  void (*attend)(const TileJob& job, std::byte* scratch);
  void (*decode_weights)(const DecodeJob& job);
  void (*decode_values)(const DecodeJob& job);
  /// The same for keys that are codes, of i8 in pages of whole units; null where there is nothing
  /// better than widening them first. A value of NaN reaches all rows,
  /// whatever their weights.
  void (*code_weights)(const DecodeJob& job) = nullptr;
  void (*code_values)(const DecodeJob& job) = nullptr;
};

const TileKernel& portable_tile_kernel();
const TileKernel& avx2_tile_kernel();
const TileKernel& avx512_tile_kernel();
const TileKernel& avx512_bf16_tile_kernel();
const TileKernel& amx_bf16_tile_kernel();

}  // namespace fovea::cpu
