// Logits of one query block against many columns, and what the lab's selectors do with them.
#pragma once

#include <cstdint>

namespace fovea::lab {

/// Columns are packed, and logits computed, in tiles of this many.
constexpr int64_t kTileCols = 16;

/// In place of logits that must not be seen: far below all others, and twice as much is finite.
constexpr float kUnseen = -1e38f;

/// [num_rows, num_tiles * kTileCols] f32, base-2 logarithms.
struct Plane {
  float* data = nullptr;
  int64_t num_rows = 0;
  int64_t num_tiles = 0;

  int64_t num_cols() const { return num_tiles * kTileCols; }
  int64_t size() const { return num_rows * num_cols(); }
  float* row(int64_t r) const { return data + r * num_cols(); }
};

/// Rows are computed so many at once: buffers of rows hold a multiple of it, zeros behind the last.
constexpr int64_t kRowsAtOnce = 8;

/// Loops over planes, compiled once per instruction set. Each result depends on its own inputs
/// only, bit for bit, whatever else is in the plane.
struct PlaneOps {
  /// plane[r, c] = scale * rows[r] . column c. `rows` is [num_rows padded to kRowsAtOnce, depth],
  /// so is the plane; `packed` is [num_tiles, depth, kTileCols].
  void (*product)(const float* rows, const float* packed, int64_t depth, float scale,
                  const Plane& plane);
  /// into = log2(2^into + 2^(from + bias)), elementwise.
  void (*add_masses)(const Plane& from, float bias, const Plane& into);
  /// into = max(into, from + bias), elementwise.
  void (*take_larger)(const Plane& from, float bias, const Plane& into);
  /// of_row[r] = log2 of the sum over columns of 2^plane[r, c].
  void (*sum_of_rows)(const Plane& plane, float* of_row);
  /// of_row[r] = max over columns.
  void (*max_of_rows)(const Plane& plane, float* of_row);
  /// of_col[c] = log2 of the sum over rows of 2^plane[r, c].
  void (*sum_of_cols)(const Plane& plane, float* of_col);
  /// of_col[c] = max over rows of plane[r, c] - of_row[r].
  void (*max_of_cols)(const Plane& plane, const float* of_row, float* of_col);
  /// of_col[c] = sum over rows of 2^(power (plane[r, c] - of_row[r])).
  void (*add_probabilities)(const Plane& plane, const float* of_row, float power, float* of_col);
};

/// The fastest that this processor can run.
const PlaneOps& plane_ops();

extern const PlaneOps kPortablePlaneOps, kAvx2PlaneOps, kAvx512PlaneOps;

}  // namespace fovea::lab
