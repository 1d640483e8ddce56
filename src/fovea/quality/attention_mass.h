// Where the attention of a query block really goes: the truth that selectors are judged by.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/selector/block_selector.h"

namespace fovea::quality {

/// The row that looks hardest at a block.
struct BlockPeak {
  float mass = 0;        // the share of its attention that the block gets
  int64_t key = 0;       // the position that gets the most of that
  float key_weight = 0;  // how much
};

/// Softmax weights of one (q head, query block), the mean over its rows; they add up to 1.
struct AttentionMass {
  std::vector<float> keys;       // of each key up to the query block's last
  std::vector<double> blocks;    // of each KV block, the query block's own included
  std::vector<BlockPeak> peaks;  // of each KV block
};

/// Computes them from the queries and keys of a CPU's call with one sequence in pages, whose chunk
/// contains query block `q_block`. Reads each key twice and keeps a few numbers a row and a key.
AttentionMass attention_mass(const SelectorParams& params, int64_t q_head, int64_t q_block);

}  // namespace fovea::quality
