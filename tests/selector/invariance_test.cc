// The same prompt gives the same lists, bit for bit, whatever the chunks, the batch, the threads
// and the prefix that was there before.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fovea/selector/cpu/cpu_selector.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using testing::Call;
using testing::CaseShape;
using testing::list_of;
using testing::make_prompt;
using testing::PagedCase;
using testing::Prompt;
using testing::WholePrompt;

// lists[q_head][q_block]
using Lists = std::vector<std::vector<std::vector<int32_t>>>;

Lists lists_of_whole(const CaseShape& shape, const Prompt& prompt, const SelectorSettings& settings,
                     const SelectorBackend& backend) {
  WholePrompt whole(shape, prompt, settings);
  BlockSelection selection;
  Context context;
  context.num_threads = 1;
  backend.run(whole.call.params, context, selection);
  Lists lists(static_cast<size_t>(shape.num_q_heads));
  for (size_t h = 0; h < lists.size(); ++h) {
    for (int64_t i = 0; i < selection.num_q_blocks; ++i) {
      lists[h].push_back(list_of(selection, static_cast<int64_t>(h), i));
    }
  }
  return lists;
}

// Runs `prompts` side by side in random chunks, some of them starting from a shared prefix, and
// compares every list with that of the prompt alone in one call.
void expect_invariant(const CaseShape& shape, const SelectorSettings& settings,
                      const SelectorBackend& backend, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t size = shape.block_size;
  // Mostly one: many small calls on busy cores would spend their time at OpenMP's barriers.
  auto random_threads = [&] { return random() % 6 == 0 ? 3 : 1; };
  std::vector<Prompt> prompts;
  for (int p = 0; p < 3; ++p) {
    const auto len = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(26 * size));
    prompts.push_back(make_prompt(shape, len, random()));
  }
  // A fourth prompt repeats the first one's start, then goes on differently.
  const int64_t shared_blocks = prompts[0].len / size / 2;
  prompts.push_back(make_prompt(shape, shared_blocks * size + 5 * size + 3, random()));
  auto copy_start = [&](std::vector<float>& to, const std::vector<float>& from, int64_t heads) {
    std::copy_n(from.begin(), shared_blocks * size * heads * shape.head_dim, to.begin());
  };
  copy_start(prompts[3].q, prompts[0].q, shape.num_q_heads);
  copy_start(prompts[3].k, prompts[0].k, shape.num_kv_heads);
  copy_start(prompts[3].v, prompts[0].v, shape.num_kv_heads);

  std::vector<Lists> expected;
  for (const Prompt& prompt : prompts) {
    expected.push_back(lists_of_whole(shape, prompt, settings, backend));
  }

  PagedCase pages(shape, 130, 4, random());
  bool shared = false;
  for (;;) {
    // The prefix is shared as soon as the first prompt has written it.
    if (!shared && pages.kv_lens()[0] >= shared_blocks * size) {
      pages.share_prefix(3, 0, shared_blocks);
      shared = true;
    }
    std::vector<const Prompt*> of_call;
    std::vector<int64_t> q_lens;
    int64_t total = 0;
    for (size_t s = 0; s < prompts.size(); ++s) {
      const int64_t left = prompts[s].len - pages.kv_lens()[s];
      int64_t count = std::min(left, static_cast<int64_t>(random() % 9) * size);
      if (s == 3 && !shared) count = 0;
      Context context;
      context.num_threads = random_threads();
      pages.append(static_cast<int64_t>(s), prompts[s], count, context);
      of_call.push_back(&prompts[s]);
      q_lens.push_back(count);
      total += count;
    }
    if (total > 0) {
      Call call(pages, of_call, q_lens, settings);
      Context context;
      context.num_threads = random_threads();
      BlockSelection selection;
      backend.run(call.params, context, selection);
      for (size_t s = 0; s < prompts.size(); ++s) {
        const int64_t first = (call.kv_lens[s] - q_lens[s]) / size;
        const int64_t begin = selection.q_block_offsets[s];
        for (int64_t r = begin; r < selection.q_block_offsets[s + 1]; ++r) {
          for (int64_t h = 0; h < shape.num_q_heads; ++h) {
            ASSERT_EQ(list_of(selection, h, r),
                      expected[s][static_cast<size_t>(h)][static_cast<size_t>(first + r - begin)])
                << "prompt " << s << ", head " << h << ", q block " << first + r - begin;
          }
        }
      }
    }
    bool done = shared;
    for (size_t s = 0; s < prompts.size(); ++s) done &= pages.kv_lens()[s] == prompts[s].len;
    if (done) return;
  }
}

struct Variant {
  std::string name;
  SelectorSettings settings;
};

Variant plain(SelectorMethod method) {
  SelectorSettings settings;
  settings.method = method;
  return {std::string(selector_method_name(method)), settings};
}

Variant witness(const std::string& name, void (*change)(SelectorSettings& settings)) {
  Variant variant = plain(SelectorMethod::kWitness);
  variant.name += "_" + name;
  change(variant.settings);
  return variant;
}

class InvarianceTest : public ::testing::TestWithParam<Variant> {};

TEST_P(InvarianceTest, ChunksBatchThreadsAndPrefix) {
  CaseShape shape;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SelectorSettings settings = GetParam().settings;
    settings.density = seed % 2 == 0 ? 0.0f : 0.25f;
    if (seed % 4 >= 2 && settings.aggregation == Aggregation::kSum && !settings.skip_by_bound) {
      settings.aggregation = Aggregation::kMax;
    }
    settings.uplift_clamp = seed % 3 == 0 ? 0.9f : 0.0f;
    settings.forced_in_maximum = seed % 3 == 1;
    settings.dense_tail_blocks = seed % 3 == 2 ? 2 : 0;
    shape.dtype = seed < 4 ? DType::kF32 : DType::kBF16;
    shape.head_dim = seed % 4 == 3 ? 80 : 64;
    for (const SelectorBackend* backend : selector_backends()) {
      if (backend->name() == "fixed" || (backend->name() == "reference" && seed > 0)) continue;
      SelectorParams asked;
      asked.q = make_view(nullptr, shape.dtype, {0, shape.num_q_heads, shape.head_dim});
      asked.settings = settings;
      if (!backend->why_unsupported(asked, {}).empty()) continue;
      SCOPED_TRACE(fmt::format("{} seed {}", backend->name(), seed));
      expect_invariant(shape, settings, *backend, seed);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, InvarianceTest,
    ::testing::Values(plain(SelectorMethod::kCentroid), plain(SelectorMethod::kRescue),
                      plain(SelectorMethod::kWitness), plain(SelectorMethod::kBound),
                      plain(SelectorMethod::kOracle), plain(SelectorMethod::kMinMax),
                      plain(SelectorMethod::kAntidiagonal), plain(SelectorMethod::kSelfSimilar),
                      plain(SelectorMethod::kNearest), plain(SelectorMethod::kMass),
                      plain(SelectorMethod::kPeak),
                      witness("far", [](auto& s) { s.witness_choice = WitnessChoice::kFar; }),
                      witness("norm", [](auto& s) { s.witness_choice = WitnessChoice::kNorm; }),
                      witness("f8", [](auto& s) { s.f8_witnesses = true; }),
                      witness("calm", [](auto& s) { s.calm_quantile = 0.5f; }),
                      witness("skip", [](auto& s) { s.skip_by_bound = true; }),
                      witness("over_means",
                              [](auto& s) { s.aggregation = Aggregation::kMaxOverMeans; }),
                      witness("per_kv_head", [](auto& s) { s.lists_per_kv_head = true; })),
    [](const auto& test) { return test.param.name; });

// Why quantiles = causal is the default: those over the whole prompt see later blocks.
TEST(Invariance, PromptQuantilesAreNotInvariant) {
  CaseShape shape;
  SelectorSettings settings;
  settings.quantiles = QuantileMode::kPrompt;
  Prompt prompt = make_prompt(shape, 24 * shape.block_size, 3);
  const int64_t half = 12 * shape.block_size;  // calm keys first, wild ones later
  const auto row = static_cast<size_t>(shape.num_kv_heads * shape.head_dim);
  for (size_t i = static_cast<size_t>(half) * row; i < prompt.k.size(); ++i) prompt.k[i] *= 4;
  const SelectorBackend& backend = *cpu_selectors().back();
  const Lists whole = lists_of_whole(shape, prompt, settings, backend);
  PagedCase pages(shape, 24, 1, 1);
  pages.append(0, prompt, half);
  Call call(pages, {&prompt}, {half}, settings);
  BlockSelection first_half;
  backend.run(call.params, {}, first_half);
  int64_t different = 0;
  for (int64_t h = 0; h < shape.num_q_heads; ++h) {
    for (int64_t i = 0; i < 12; ++i) {
      different +=
          list_of(first_half, h, i) != whole[static_cast<size_t>(h)][static_cast<size_t>(i)] ? 1
                                                                                             : 0;
    }
  }
  EXPECT_GT(different, 0);
}

}  // namespace
}  // namespace fovea
