// Attention of one tile: the online softmax that all instruction sets share.
//
// Everything is transposed: logits are S^T [keys, rows], the output is O^T [head_dim, rows]. Rows
// lie along the vector, so maxima, sums and rescaling are vertical operations, and the weights P^T
// come out in the layout that the second product wants.
//
// Included only by the files that compile for one instruction set each, hence the unnamed
// namespace: no function of one set may be merged with its twin of another.
//
// An Isa brings:
//   Simd            vectors of f32: see GenericSimd
//   kRows           rows that are worked on together; a tile is kSubtiles times as many
//   kSubtiles       meet each batch of keys one after the other, while the batch is in the cache
//   kPack           keys (or channels) in one 32-bit element: 1 of f32, 2 of bf16
//   kBatchGroups    groups whose logits are in the scratch together
//   kOverlaps       whether products run beside the softmax: see run()
//   Layout          how K and V are packed: see F32Layout
//   Weights         turns logits into weights and sums them: see F32Weights
//   multiply(products, beside)  both products; calls beside() now and then if kOverlaps
//   Session         an object that lives as long as the tile: sets up and restores the machine
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "fovea/attention/cpu/decode_split.h"
#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

// Weights may grow to 2^8 before O and the sums are rescaled: f32 and bf16 do not notice, and after
// the first few keys of a row rescaling almost never happens.
constexpr float kSlackLog2 = 8.0f;

// Above this the rounding of a shift, 2^-24 of it, would itself overflow exp2.
constexpr float kMaxFusedShift = 0x1p26f;

template <int64_t kAlign>
constexpr int64_t round_up(int64_t value) {
  return (value + kAlign - 1) / kAlign * kAlign;
}

/// S^T = K Q^T of num_keys groups and O^T += V^T P^T of num_values groups, either may be none.
struct Products {
  static constexpr int kMaxGroups = 4;
  int64_t head_dim = 0;
  int num_keys = 0;
  const std::byte* keys[kMaxGroups] = {};
  const float* q = nullptr;
  float* s = nullptr;
  int num_values = 0;
  const std::byte* values[kMaxGroups] = {};
  const float* p = nullptr;
  float* o = nullptr;
  bool is_first = false;  // O is not initialised: = instead of +=
};

/// Rows that are needed soon, asked for a few lines at a time: a core waits for at most 16 lines at
/// once, so a burst would hold up the loads of the products.
class RowsAhead {
 public:
  RowsAhead(const std::byte* const* rows, int32_t num_rows, int64_t row_bytes)
      : rows_(rows), num_rows_(num_rows), row_bytes_(row_bytes) {}

  void fetch_some() {
    constexpr int kLines = 4;
    constexpr int64_t kLineBytes = 64;
    for (int i = 0; i < kLines && row_ < num_rows_; ++i) {
      __builtin_prefetch(rows_[row_] + byte_);
      byte_ += kLineBytes;
      if (byte_ < row_bytes_) continue;
      byte_ = 0;
      ++row_;
    }
  }

 private:
  const std::byte* const* rows_;
  int32_t num_rows_;
  int64_t row_bytes_;
  int32_t row_ = 0;
  int64_t byte_ = 0;
};

template <class Isa>
class TileAttention {
  using Simd = typename Isa::Simd;
  using Vec = typename Simd::Vec;
  static constexpr int kRows = Isa::kRows;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kVecs = kRows / kLanes;
  static constexpr int kKeys = static_cast<int>(kGroupKeys);
  static constexpr int kBatchGroups = Isa::kBatchGroups;
  static_assert(kBatchGroups <= Products::kMaxGroups);
  static constexpr int kWeightRows = kKeys / Isa::kPack;  // elements of one group and row

 public:
  static int64_t scratch_bytes(int64_t head_dim) {
    const Offsets offsets(head_dim);
    return offsets.num_floats * static_cast<int64_t>(sizeof(float));
  }

  TileAttention(const TileJob& job, std::byte* scratch)
      : job_(job),
        offsets_(job.head_dim),
        scale_log2_(job.softmax_scale * kLog2E),
        scratch_(reinterpret_cast<float*>(scratch)),
        rows_(scratch_ + offsets_.rows),
        next_queries_(job.next_q, job.num_next_rows, job.head_dim * element_bytes(job.is_bf16)),
        outputs_(job.out, job.num_rows, job.head_dim * element_bytes(job.is_bf16)) {}

  // An item is one subtile and one batch of groups: logits, softmax, values. Where products have a
  // unit of their own (AMX), an item's softmax runs beside the products of its neighbours: the
  // values of the item before, the logits of the item after.
  void run() {
    num_subtiles_ = (job_.num_rows + kRows - 1) / kRows;
    for (int i = 0; i < num_subtiles_; ++i) clear_sums(subtile(i));
    Item items[3];
    Item *previous = &items[0], *current = &items[1], *next = &items[2];
    bool has_item = next_item(*current);
    if (has_item) multiply(nullptr, current);
    while (has_item) {
      has_item = next_item(*next);
      mask(*current);
      if constexpr (Isa::kOverlaps) {
        if (can_overlap(*previous, *current)) {
          overlap(*previous, *current, has_item ? next : nullptr);
        } else {
          multiply(previous, has_item ? next : nullptr);
          weigh(*current);
        }
      } else {
        weigh(*current);
        multiply(current, has_item ? next : nullptr);
      }
      Item* const spare = previous;
      previous = current;
      current = next;
      next = spare;
    }
    if constexpr (Isa::kOverlaps) multiply(previous, nullptr);
    for (int i = 0; i < num_subtiles_; ++i) store_outputs(i);
  }

 private:
  static constexpr int64_t element_bytes(bool is_bf16) { return is_bf16 ? 2 : 4; }

  // Where each array starts in the scratch, in floats. Logits and weights of two items and rows in
  // passing are shared by the subtiles; queries, outputs, maxima, shifts and sums are each
  // subtile's own.
  struct Offsets {
    explicit Offsets(int64_t head_dim) {
      const int64_t channels = Isa::Layout::padded_head_dim(head_dim);
      p = 2 * kBatchGroups * kKeys * kRows;
      rows = p + 2 * kBatchGroups * kWeightRows * kRows;
      state = rows + channels * kRows;
      o = channels / Isa::kPack * kRows;
      max = o + head_dim * kRows;
      state_size = max + 3 * kRows;
      num_floats = state + Isa::kSubtiles * state_size;
    }
    int64_t p, rows, state;      // from the start of the scratch
    int64_t num_floats;          // of all of it
    int64_t o, max, state_size;  // from the start of a subtile's state
  };

  struct Subtile {
    int first_row, num_rows;
    float *q, *o, *max, *shift, *sum;
    int last_row() const { return first_row + num_rows - 1; }
  };

  struct Item {
    const TilePass* pass = nullptr;
    int subtile = 0;
    bool is_first = false;  // of its subtile
    int num_groups = 0;
    KeyGroup groups[kBatchGroups] = {};
    const std::byte *keys[kBatchGroups] = {}, *values[kBatchGroups] = {};
    float *s = nullptr, *p = nullptr;
  };

  Subtile subtile(int i) const {
    float* const state = scratch_ + offsets_.state + i * offsets_.state_size;
    float* const max = state + offsets_.max;
    const int first_row = i * kRows, left = job_.num_rows - first_row;
    return {
        first_row,      left < kRows ? left : kRows, state, state + offsets_.o, max, max + kRows,
        max + 2 * kRows};
  }

  static void clear_sums(const Subtile& tile) {
    for (int r = 0; r < kRows; ++r) {
      tile.max[r] = kMinusInfinity;
      tile.shift[r] = 0;
      tile.sum[r] = 0;
    }
  }

  // Rows of q, converted and zero-padded, as Q^T [elements of head_dim, rows]. Only when the
  // subtile has its first item: products of the subtile before run beside it. Out of line, as
  // store_outputs(): within run() they would take registers from the inner loops.
  [[gnu::noinline]] void load_queries(const Subtile& tile) {
    const bool must_convert = Isa::kPack == 1 && job_.is_bf16;
    if (Simd::kTransposes && !must_convert) {
      transpose_queries(tile);
    } else {
      convert_queries(tile);
    }
  }

  void convert_queries(const Subtile& tile) {
    const int64_t channels = Isa::Layout::padded_head_dim(job_.head_dim);
    const int64_t row_elements = channels / Isa::kPack;
    if (tile.num_rows < kRows || channels > job_.head_dim) {
      std::memset(rows_, 0, sizeof(float) * static_cast<size_t>(row_elements * kRows));
    }
    for (int r = 0; r < tile.num_rows; ++r) {
      Isa::Layout::copy_row(job_.q[tile.first_row + r], job_.is_bf16, job_.head_dim,
                            rows_ + r * row_elements);
    }
    transpose_elements(rows_, row_elements, tile.q, kRows, kRows, row_elements);
  }

  // The same in registers, for rows that are of the kernel's type already.
  void transpose_queries(const Subtile& tile) {
    if constexpr (Simd::kTransposes) {
      alignas(16) static constexpr std::byte kZeros[4 * 256] = {};
      const int64_t row_elements = job_.head_dim / Isa::kPack;
      const int64_t padded = Isa::Layout::padded_head_dim(job_.head_dim) / Isa::kPack;
      for (int v = 0; v < kRows; v += kLanes) {
        const std::byte* rows[kLanes];
        for (int r = 0; r < kLanes; ++r) {
          rows[r] = v + r < tile.num_rows ? job_.q[tile.first_row + v + r] : kZeros;
        }
        float* to = tile.q + v;
        for (int64_t i = 0; i < row_elements; i += 4, to += 4 * kRows) {
          Simd::transpose_4(rows, 4 * i, to, kRows);
        }
        for (int64_t i = row_elements; i < padded; ++i, to += kRows) Simd::store(to, Vec{});
      }
    }
  }

  // Pass by pass, batch by batch, all subtiles meet a batch while it is in the cache. False at the
  // end.
  bool next_item(Item& item) {
    for (; pass_idx_ < job_.num_passes; ++pass_idx_, first_group_ = 0) {
      const TilePass& pass = job_.passes[pass_idx_];
      for (; first_group_ < pass.num_groups; first_group_ += kBatchGroups, subtile_idx_ = 0) {
        while (subtile_idx_ < num_subtiles_) {
          if (fill_item(pass, subtile_idx_++, item)) return true;
        }
      }
    }
    return false;
  }

  // False where the subtile sees none of the batch.
  bool fill_item(const TilePass& pass, int subtile_idx, Item& item) {
    const Subtile tile = subtile(subtile_idx);
    item.num_groups = 0;
    for (int64_t i = first_group_; i < first_group_ + kBatchGroups && i < pass.num_groups; ++i) {
      const int64_t first_key = pass.groups[i].index * kGroupKeys;
      if (first_key >= pass.end[tile.last_row()]) continue;
      if (first_key + kGroupKeys <= pass.begin[tile.first_row]) continue;
      item.groups[item.num_groups++] = pass.groups[i];
    }
    if (item.num_groups == 0) return false;
    item.pass = &pass;
    item.subtile = subtile_idx;
    item.is_first = !has_items_[subtile_idx];
    if (item.is_first) load_queries(tile);
    has_items_[subtile_idx] = true;
    item.s = scratch_ + parity_ * kBatchGroups * kKeys * kRows;
    item.p = scratch_ + offsets_.p + parity_ * kBatchGroups * kWeightRows * kRows;
    parity_ ^= 1;
    const int64_t bytes = Isa::Layout::value_group_bytes(job_.head_dim);
    for (int i = 0; i < item.num_groups; ++i) {
      item.keys[i] = pass.keys[item.groups[i].index];
      item.values[i] = pass.values + item.groups[i].index * bytes;
    }
    return true;
  }

  // The values of one item, weighed, and the logits of another; either may be none.
  Products products(const Item* weighed, const Item* wanted) const {
    Products products;
    products.head_dim = job_.head_dim;
    if (weighed != nullptr && weighed->num_groups > 0) {
      products.num_values = weighed->num_groups;
      for (int i = 0; i < weighed->num_groups; ++i) products.values[i] = weighed->values[i];
      products.p = weighed->p;
      products.o = subtile(weighed->subtile).o;
      products.is_first = weighed->is_first;
    }
    if (wanted != nullptr) {
      products.num_keys = wanted->num_groups;
      for (int i = 0; i < wanted->num_groups; ++i) products.keys[i] = wanted->keys[i];
      products.q = subtile(wanted->subtile).q;
      products.s = wanted->s;
    }
    return products;
  }

  void multiply(const Item* weighed, const Item* wanted) const {
    Isa::multiply(products(weighed, wanted), [] {});
  }

  // Adds the bias and hides what some rows do not see.
  void mask(const Item& item) const {
    const TilePass& pass = *item.pass;
    const Subtile tile = subtile(item.subtile);
    for (int i = 0; i < item.num_groups; ++i) {
      float* const s = item.s + i * kKeys * kRows;
      if (pass.logit_bias != 0) {
        for (int j = 0; j < kKeys * kRows; ++j) s[j] += pass.logit_bias;
      }
      const int64_t first_key = item.groups[i].index * kGroupKeys;
      if (first_key + kGroupKeys > pass.end[tile.first_row] ||
          first_key < pass.begin[tile.last_row()]) {
        mask_rows(pass, tile, first_key, s);
      }
      if (item.groups[i].keys != ~0u) mask_keys(item.groups[i].keys, s);
    }
  }

  // Rows past num_rows are of zeros and read as the last row does; nobody looks at them.
  void mask_rows(const TilePass& pass, const Subtile& tile, int64_t first_key, float* s) const {
    if (first_key + kKeys > pass.end[tile.first_row]) hide_keys<true>(pass.end, tile, first_key, s);
    if (first_key < pass.begin[tile.last_row()]) hide_keys<false>(pass.begin, tile, first_key, s);
  }

  // Hides what is not below, or what is below, each row's limit.
  template <bool kShowsBelow>
  static void hide_keys(const int32_t* limits, const Subtile& tile, int64_t first_key, float* s) {
    using Limits = typename Simd::IntVec;
    alignas(64) int32_t limit[kRows];
    const auto key = static_cast<int32_t>(first_key);
    for (int r = 0; r < tile.num_rows; ++r) limit[r] = limits[tile.first_row + r] - key;
    for (int r = tile.num_rows; r < kRows; ++r) limit[r] = limit[tile.num_rows - 1];
    const Vec none = Simd::broadcast(kMinusInfinity);
    for (int v = 0; v < kRows; v += kLanes) {
      Limits row_limits;
      std::memcpy(&row_limits, limit + v, sizeof(row_limits));
      float* logits = s + v;
      for (int32_t t = 0; t < kKeys; ++t, logits += kRows) {
        const Vec all = Simd::load(logits);
        Simd::store(logits,
                    kShowsBelow ? (row_limits > t ? all : none) : (row_limits > t ? none : all));
      }
    }
  }

  void mask_keys(uint32_t keys, float* s) const {
    for (int t = 0; t < kKeys; ++t) {
      if ((keys >> t & 1u) != 0) continue;
      for (int r = 0; r < kRows; ++r) s[t * kRows + r] = kMinusInfinity;
    }
  }

  // Whether the item's weights can be taken while its neighbours are multiplied. Once every row has
  // a maximum it will probably do for the next keys too; where a weight turns out above
  // 2^kSlackLog2 they are taken again. Raising a maximum rescales O, which the previous item may be
  // adding to.
  bool can_overlap(const Item& previous, const Item& item) {
    if (!is_settled_[item.subtile]) {
      if (previous.num_groups > 0 && previous.subtile == item.subtile) return false;
      raise_max(item, subtile(item.subtile));
    }
    return !is_huge_;
  }

  static constexpr int kPieceKeys = 8;

  // A piece of an item's weights: kPieceKeys keys of a vector of rows.
  template <bool kIsHuge>
  void weigh_piece(const Item& item, const Subtile& tile, int piece, Vec* sums, Vec& top) const {
    constexpr int kPieces = kKeys / kPieceKeys;
    const int v = piece / kPieces % kVecs, group = piece / (kPieces * kVecs);
    const int first_key = piece % kPieces * kPieceKeys;
    const float* s = item.s + (group * kKeys + first_key) * kRows + v * kLanes;
    float* p = item.p + (group * kKeys + first_key) / Isa::kPack * kRows + v * kLanes;
    const Vec scale = Simd::broadcast(scale_log2_);
    const Vec shift = Simd::load(tile.shift + v * kLanes);
    const Vec max = Simd::zero_where_minus_infinity(Simd::load(tile.max + v * kLanes));
    typename Isa::Weights weights(sums[v], top);
    for (int t = 0; t < kPieceKeys; t += 2, s += 2 * kRows, p += 2 / Isa::kPack * kRows) {
      const Vec even = Simd::load(s), odd = Simd::load(s + kRows);
      if constexpr (kIsHuge) {
        weights.add((even - max) * scale, (odd - max) * scale, p);
      } else {
        // The shift is the same number for all keys of a row, so its rounding cancels; of huge
        // logits it would not stay small, and the difference comes first.
        weights.add(Simd::multiply_subtract(even, scale, shift),
                    Simd::multiply_subtract(odd, scale, shift), p);
      }
    }
    sums[v] = weights.sum;
    top = weights.top;
  }

  static int num_pieces(const Item& item) { return item.num_groups * kVecs * kKeys / kPieceKeys; }

  void add_sums(const Subtile& tile, const Vec* sums) const {
    for (int v = 0; v < kVecs; ++v) {
      Simd::store(tile.sum + v * kLanes, Simd::load(tile.sum + v * kLanes) + sums[v]);
    }
  }

  // Weights of one item beside the products of its neighbours.
  void overlap(const Item& previous, const Item& item, const Item* next) {
    const Subtile tile = subtile(item.subtile);
    Vec sums[kVecs] = {}, top = {};
    const Products around = products(&previous, next);
    const int pieces = num_pieces(item), units = Isa::num_units(around);
    int piece = 0, share = 0;
    Isa::multiply(around, [&] {
      next_queries_.fetch_some();
      outputs_.fetch_some();
      for (share += pieces; share >= units && piece < pieces; share -= units) {
        weigh_piece<false>(item, tile, piece++, sums, top);
      }
    });
    while (piece < pieces) weigh_piece<false>(item, tile, piece++, sums, top);
    if (Isa::Weights::is_above(top, kSlackLog2)) {
      weigh(item);
    } else {
      add_sums(tile, sums);
    }
  }

  // Weights of one item. All that came before has reached O, which may have to be rescaled.
  void weigh(const Item& item) {
    const Subtile tile = subtile(item.subtile);
    raise_max(item, tile);
    Vec sums[kVecs] = {}, top = {};
    for (int piece = 0; piece < num_pieces(item); ++piece) {
      if (is_huge_) {
        weigh_piece<true>(item, tile, piece, sums, top);
      } else {
        weigh_piece<false>(item, tile, piece, sums, top);
      }
    }
    add_sums(tile, sums);
  }

  // Raises the rows' maxima where the item's logits exceed them by more than the slack.
  void raise_max(const Item& item, const Subtile& tile) {
    const float slack = kSlackLog2 / scale_log2_;
    bool must_rescale = false;
    Vec item_max[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const float* s = item.s + v * kLanes;
      Vec a = Simd::load(s), b = Simd::load(s + kRows);
      Vec c = Simd::load(s + 2 * kRows), d = Simd::load(s + 3 * kRows);
      for (int t = 4; t < item.num_groups * kKeys; t += 4) {
        a = Simd::max(a, Simd::load(s + t * kRows));
        b = Simd::max(b, Simd::load(s + (t + 1) * kRows));
        c = Simd::max(c, Simd::load(s + (t + 2) * kRows));
        d = Simd::max(d, Simd::load(s + (t + 3) * kRows));
      }
      item_max[v] = Simd::max(Simd::max(a, b), Simd::max(c, d));
      const Vec limit = Simd::load(tile.max + v * kLanes) + slack;
      must_rescale |= Simd::any_greater(item_max[v], limit);
    }
    if (!must_rescale) return;
    Vec factor[kVecs];
    bool is_settled = true, is_huge = is_huge_;
    for (int v = 0; v < kVecs; ++v) {
      float *const max = tile.max + v * kLanes, *const shift = tile.shift + v * kLanes;
      float* const sum = tile.sum + v * kLanes;
      const Vec old_max = Simd::load(max), old_shift = Simd::load(shift);
      const Vec new_max = Simd::max(item_max[v], old_max);
      // Rows that have seen nothing have a shift of 0 and a factor of 0: -inf - -inf would be NaN.
      const Vec new_shift = Simd::zero_where_minus_infinity(new_max) * scale_log2_;
      const Vec lowered = Simd::template exp2<5>(is_huge_ ? (old_max - new_max) * scale_log2_
                                                          : old_shift - new_shift);
      const Vec one = Simd::broadcast(1), none = Simd::broadcast(kMinusInfinity);
      factor[v] = old_max == new_max ? one : (old_max == none ? Vec{} : lowered);
      Simd::store(max, new_max);
      Simd::store(shift, new_shift);
      Simd::store(sum, Simd::load(sum) * factor[v]);
      is_huge |= Simd::any_greater(new_shift, Simd::broadcast(kMaxFusedShift)) ||
                 Simd::any_greater(Simd::broadcast(-kMaxFusedShift), new_shift);
      is_settled &=
          !Simd::any_greater(Simd::broadcast(std::numeric_limits<float>::lowest()), new_max);
    }
    is_huge_ = is_huge;
    is_settled_[item.subtile] = is_settled;
    if (item.is_first) return;  // O has nothing yet
    for (int64_t d = 0; d < job_.head_dim; ++d) {
      for (int v = 0; v < kVecs; ++v) {
        float* const o = tile.o + d * kRows + v * kLanes;
        Simd::store(o, Simd::load(o) * factor[v]);
      }
    }
  }

  [[gnu::noinline]] void store_outputs(int subtile_idx) {
    const Subtile tile = subtile(subtile_idx);
    const int64_t head_dim = job_.head_dim;
    alignas(64) float inverse[kRows];
    finish_sums(tile, inverse);
    if (!has_items_[subtile_idx]) {
      std::memset(tile.o, 0, sizeof(float) * static_cast<size_t>(head_dim * kRows));
    }
    const bool as_bf16 = job_.is_bf16;
    const int64_t row_elements = as_bf16 ? head_dim / 2 : head_dim;
    // Element i of some rows as they go out: f32, or a pair of bf16.
    const auto element = [&](int v, int64_t i, Vec factor) {
      if (!as_bf16) return Simd::load(tile.o + i * kRows + v) * factor;
      const float* const pair = tile.o + 2 * i * kRows + v;
      return Simd::pair_bf16(Simd::load(pair) * factor, Simd::load(pair + kRows) * factor);
    };
    for (int v = 0; v < kRows; v += kLanes) {
      const Vec factor = Simd::load(inverse + v);
      if constexpr (Simd::kTransposes) {
        for (int64_t i = 0; i < row_elements; i += kLanes) {
          Vec rows[kLanes];
          for (int j = 0; j < kLanes; ++j) {
            rows[j] = element(v, i + j < row_elements ? i + j : i, factor);
          }
          Simd::transpose(rows);
          for (int r = 0; r < kLanes && v + r < tile.num_rows; ++r) {
            Simd::store_elements(job_.out[tile.first_row + v + r] + 4 * i, rows[r],
                                 row_elements - i);
          }
        }
      } else {
        for (int64_t i = 0; i < row_elements; ++i) {
          Simd::store(tile.o + i * kRows + v, element(v, i, factor));
        }
      }
    }
    if constexpr (!Simd::kTransposes) {
      transpose_elements(tile.o, kRows, rows_, row_elements, row_elements, kRows);
      for (int r = 0; r < tile.num_rows; ++r) {
        std::memcpy(job_.out[tile.first_row + r], rows_ + r * row_elements,
                    sizeof(float) * static_cast<size_t>(row_elements));
      }
    }
  }

  // What each row of O is multiplied by at the end, sinks taken in, and lse.
  void finish_sums(const Subtile& tile, float* inverse) const {
    for (int v = 0; v < kRows; v += kLanes) {
      const Vec sum = Simd::load(tile.sum + v);
      const Vec zero = {};
      Simd::store(inverse + v, sum == zero ? zero : 1.0f / sum);
    }
    if (job_.sinks == nullptr && job_.lse[tile.first_row] == nullptr) return;
    for (int r = 0; r < tile.num_rows; ++r) {
      const int row = tile.first_row + r;
      float max = tile.max[r] == kMinusInfinity ? kMinusInfinity
                  : is_huge_                    ? tile.max[r] * job_.softmax_scale
                                                : tile.shift[r] * (1 / kLog2E);
      float sum = tile.sum[r];
      if (job_.sinks != nullptr) {
        const float sink = job_.sinks[row];
        const float new_max = max > sink ? max : sink;
        const float factor = max == new_max ? 1.0f : expf(max - new_max);  // of what was summed
        if (new_max != kMinusInfinity) sum = sum * factor + expf(sink - new_max);
        max = new_max;
        inverse[r] = sum == 0 ? 0.0f : factor / sum;
      }
      if (job_.lse[row] != nullptr) *job_.lse[row] = sum == 0 ? kMinusInfinity : max + logf(sum);
    }
  }

  const TileJob& job_;
  const Offsets offsets_;
  const float scale_log2_;
  float* const scratch_;
  float* const rows_;
  RowsAhead next_queries_, outputs_;
  int num_subtiles_ = 0;
  bool is_huge_ = false;
  bool has_items_[Isa::kSubtiles] = {};
  bool is_settled_[Isa::kSubtiles] = {};  // every row has seen a key
  // Where next_item() is.
  int32_t pass_idx_ = 0;
  int64_t first_group_ = 0;
  int subtile_idx_ = 0;
  int parity_ = 0;
};

/// The table of one instruction set.
template <class Isa>
const TileKernel& make_tile_kernel() {
  static const TileKernel kernel = {
      Isa::kRows * Isa::kSubtiles,
      [](int64_t head_dim, bool is_bf16) {
        return head_dim % 16 == 0 && head_dim <= 256 && (is_bf16 || Isa::kPack == 1);
      },
      &Isa::Layout::key_group_bytes,
      &Isa::Layout::value_group_bytes,
      &TileAttention<Isa>::scratch_bytes,
      &Isa::pack,
      [](const TileJob& job, std::byte* scratch) {
        [[maybe_unused]] const typename Isa::Session session;
        TileAttention<Isa>(job, scratch).run();
      },
      [](const DecodeJob& job) {
        if (job.is_bf16) {
          DecodeSplit<Isa, true>(job).weigh();
        } else {
          DecodeSplit<Isa, false>(job).weigh();
        }
      },
      [](const DecodeJob& job) {
        if (job.is_bf16) {
          DecodeSplit<Isa, true>(job).add_values();
        } else {
          DecodeSplit<Isa, false>(job).add_values();
        }
      },
  };
  return kernel;
}

}  // namespace
}  // namespace fovea::cpu
