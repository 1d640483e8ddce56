// PlaneOps, written once and compiled once per instruction set (see cpu/vector16.h).
#pragma once

#include <algorithm>

#include "fovea/selector/cpu/vector16.h"
#include "fovea/selector/lab/plane.h"

namespace fovea::lab {
namespace {

static_assert(kTileCols == kLanes);

void product(const float* rows, const float* packed, int64_t depth, float scale,
             const Plane& plane) {
  // A tile of columns stays in the cache while all rows pass it.
  for (int64_t t = 0; t < plane.num_tiles; ++t) {
    const float* tile = packed + t * depth * kLanes;
    for (int64_t r = 0; r < plane.num_rows; r += kRowsAtOnce) {
      F32x16 sum[kRowsAtOnce] = {};
      for (int64_t c = 0; c < depth; ++c) {
        const F32x16 column = widen(tile + c * kLanes);
        for (int64_t i = 0; i < kRowsAtOnce; ++i) sum[i] += column * rows[(r + i) * depth + c];
      }
      for (int64_t i = 0; i < kRowsAtOnce; ++i) {
        store(plane.row(r + i) + t * kLanes, sum[i] * scale);
      }
    }
  }
}

void add_masses(const Plane& from, float bias, const Plane& into) {
  for (int64_t i = 0; i < into.size(); i += kLanes) {
    const F32x16 a = widen(into.data + i), b = widen(from.data + i) + bias;
    const F32x16 most = larger(a, b);
    store(into.data + i, most + log2_lanes(exp2_lanes(a - most) + exp2_lanes(b - most)));
  }
}

void take_larger(const Plane& from, float bias, const Plane& into) {
  for (int64_t i = 0; i < into.size(); i += kLanes) {
    store(into.data + i, larger(widen(into.data + i), widen(from.data + i) + bias));
  }
}

float max_of_row(const Plane& plane, int64_t r) {
  F32x16 most = widen(plane.row(r));
  for (int64_t t = 1; t < plane.num_tiles; ++t) {
    most = larger(most, widen(plane.row(r) + t * kLanes));
  }
  float result = most[0];
  for (int i = 1; i < kLanes; ++i) result = std::max(result, most[i]);
  return result;
}

void max_of_rows(const Plane& plane, float* of_row) {
  for (int64_t r = 0; r < plane.num_rows; ++r) of_row[r] = max_of_row(plane, r);
}

void sum_of_rows(const Plane& plane, float* of_row) {
  for (int64_t r = 0; r < plane.num_rows; ++r) {
    const float most = max_of_row(plane, r);
    F32x16 sum = {};
    for (int64_t t = 0; t < plane.num_tiles; ++t) {
      sum += exp2_lanes(widen(plane.row(r) + t * kLanes) - most);
    }
    of_row[r] = most + log2_lanes(F32x16{} + sum_lanes(sum))[0];
  }
}

void sum_of_cols(const Plane& plane, float* of_col) {
  for (int64_t c = 0; c < plane.num_cols(); c += kLanes) {
    F32x16 most = widen(plane.data + c), sum = {};
    for (int64_t r = 1; r < plane.num_rows; ++r) most = larger(most, widen(plane.row(r) + c));
    for (int64_t r = 0; r < plane.num_rows; ++r) sum += exp2_lanes(widen(plane.row(r) + c) - most);
    store(of_col + c, most + log2_lanes(sum));
  }
}

void max_of_cols(const Plane& plane, const float* of_row, float* of_col) {
  for (int64_t c = 0; c < plane.num_cols(); c += kLanes) {
    F32x16 most = widen(plane.data + c) - of_row[0];
    for (int64_t r = 1; r < plane.num_rows; ++r) {
      most = larger(most, widen(plane.row(r) + c) - of_row[r]);
    }
    store(of_col + c, most);
  }
}

void add_probabilities(const Plane& plane, const float* of_row, float power, float* of_col) {
  for (int64_t c = 0; c < plane.num_cols(); c += kLanes) {
    F32x16 sum = {};
    for (int64_t r = 0; r < plane.num_rows; ++r) {
      sum += exp2_lanes(power * (widen(plane.row(r) + c) - of_row[r]));
    }
    store(of_col + c, sum);
  }
}

constexpr PlaneOps kOps = {product,     add_masses,  take_larger, sum_of_rows,
                           max_of_rows, sum_of_cols, max_of_cols, add_probabilities};

}  // namespace
}  // namespace fovea::lab
