// Quest, arXiv 2406.10774: a block is worth at most what the best corner of the box around its keys
// would be, sum over channels of max(q_c min_c, q_c max_c).
#include <algorithm>

#include "fovea/selector/lab/method.h"

namespace fovea::lab {
namespace {

class MinMax final : public Method {
 public:
  explicit MinMax(const Sequence& sequence)
      : sequence_(sequence),
        boxes_(sequence.num_kv_heads, sequence.num_blocks, 2 * sequence.head_dim, sequence.context,
               [&](int64_t head, int64_t block, float* box) { read_box(head, block, box); }) {}

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    // The best corner has max_c where q_c is positive and min_c where it is negative: one product
    // of the halves of q with the halves of the box.
    const int64_t d = sequence_.head_dim;
    const int64_t padded = (block.num_rows + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
    scratch.rows.resize(static_cast<size_t>(padded * 2 * d));
    for (int64_t r = 0; r < padded; ++r) {
      for (int64_t c = 0; c < d; ++c) {
        const float q = block.rows[r * d + c];
        float* const row = scratch.rows.data() + r * 2 * d;
        row[c] = std::max(q, 0.0f);
        row[d + c] = std::min(q, 0.0f);
      }
    }
    const Plane plane = make_plane(scratch.rows.data(), block.num_rows, boxes_, block.kv_head,
                                   block.index, sequence_.scale_log2, scratch);
    hide_bad(sequence_, block, plane);
    judge_by_alpha(sequence_, block, plane, scratch, verdict);
  }

 private:
  // box = [max, min] per channel.
  void read_box(int64_t head, int64_t block, float* box) const {
    const int64_t d = sequence_.head_dim, size = sequence_.block_size;
    std::vector<float> key(static_cast<size_t>(d));
    sequence_.read_key(head, block * size, box);
    std::copy_n(box, d, box + d);
    for (int64_t t = 1; t < size; ++t) {
      sequence_.read_key(head, block * size + t, key.data());
      for (int64_t c = 0; c < d; ++c) {
        box[c] = std::max(box[c], key[static_cast<size_t>(c)]);
        box[d + c] = std::min(box[d + c], key[static_cast<size_t>(c)]);
      }
    }
  }

  const Sequence& sequence_;
  const PackedColumns boxes_;
};

}  // namespace

std::unique_ptr<Method> make_minmax(const Sequence& sequence) {
  return std::make_unique<MinMax>(sequence);
}

}  // namespace fovea::lab
