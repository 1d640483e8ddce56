// Peak memory of a selection grows with the tokens, never with tokens x blocks. A program of its
// own: the system reports one peak per process.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <random>

#include "fovea/selector/block_selector.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

// Bytes that selecting over `len` tokens adds to the peak, lists included.
int64_t added_by_selection(int64_t len) {
  const int64_t head_dim = 32, num_blocks = len / 128;
  Tensor q(DType::kBF16, {len, 1, head_dim}), k(DType::kBF16, {len, 1, head_dim});
  std::mt19937 random(5);
  for (int64_t i = 0; i < len * head_dim; ++i) {
    q.as<BFloat16>()[i] = to_bfloat16(static_cast<float>(random() % 1000) / 300 - 1.5f);
    k.as<BFloat16>()[i] = to_bfloat16(static_cast<float>(random() % 1000) / 300 - 1.5f);
  }
  BlockStats stats(DType::kBF16, num_blocks, 1, head_dim, 128, 4);
  const int64_t zero = 0, q_offsets[] = {0, len};
  SelectorParams params;
  params.q = q.view();
  params.kv.k = params.kv.v = k.view();
  params.kv.kv_offsets = &zero;
  params.batch = {1, q_offsets, &len};
  params.block_offsets = &zero;
  params.settings.method = SelectorMethod::kWitness;
  params.settings.density = 0.05f;
  compute_block_stats(params.kv, 0, 0, num_blocks, 0, stats.view(), {});
  params.stats = stats.view();
  malloc_trim(0);
  const int64_t before = peak_bytes();
  BlockSelection selection;
  select_blocks(params, {}, selection);
  EXPECT_NEAR(selection.density(), 0.05, 0.001);
  return peak_bytes() - before;
}

TEST(SelectionMemory, StaysFarBelowTokensTimesBlocks) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps freed memory";
#endif
  // 2,048 blocks: one f32 plane of tokens x blocks is 2.1 GB, of blocks x blocks for one head 16.8
  // MB. Statistics repacked are about 1 MB, lists 0.4 MB, the threads' scratch 42 KB each.
  const int64_t added = added_by_selection(256 * 1024);
  RecordProperty("added_bytes", std::to_string(added));
  EXPECT_LT(added, 8 << 20);
}

}  // namespace
}  // namespace fovea
