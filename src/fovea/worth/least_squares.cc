#include <cmath>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/worth/fit.h"

namespace fovea::worth {
namespace {

// The weighted, column-scaled system, and what Householder's QR makes of it: R above the diagonal
// of `a` (column-major), Q^T y in `y`.
struct System {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> a;
  std::vector<double> y;
  std::vector<double> scale;

  double& at(int64_t row, int64_t column) { return a[static_cast<size_t>(column * rows + row)]; }
};

// n^2 beside 1 spans ten decades: without scaling, the normal equations lose every digit of the
// overhead.
void scale_columns(System& system) {
  system.scale.resize(static_cast<size_t>(system.columns));
  for (int64_t j = 0; j < system.columns; ++j) {
    double largest = 0;
    for (int64_t i = 0; i < system.rows; ++i)
      largest = std::fmax(largest, std::fabs(system.at(i, j)));
    check_argument(largest > 0, "column {} of the fit is all zero", j);
    for (int64_t i = 0; i < system.rows; ++i) system.at(i, j) /= largest;
    system.scale[static_cast<size_t>(j)] = largest;
  }
}

void factorise(System& system) {
  const int64_t m = system.rows;
  for (int64_t k = 0; k < system.columns; ++k) {
    double norm = 0;
    for (int64_t i = k; i < m; ++i) norm = std::hypot(norm, system.at(i, k));
    check_argument(norm > 1e-12,
                   "the fit needs more different lengths: {} coefficients, {} of them "
                   "determined",
                   system.columns, k);
    const double diagonal = system.at(k, k) > 0 ? -norm : norm;
    std::vector<double> v(static_cast<size_t>(m - k));
    for (int64_t i = k; i < m; ++i) v[static_cast<size_t>(i - k)] = system.at(i, k);
    v[0] -= diagonal;
    double v_norm2 = 0;
    for (const double x : v) v_norm2 += x * x;
    const auto reflect = [&](double* x) {
      double dot = 0;
      for (size_t i = 0; i < v.size(); ++i) dot += v[i] * x[i];
      const double factor = 2 * dot / v_norm2;
      for (size_t i = 0; i < v.size(); ++i) x[i] -= factor * v[i];
    };
    for (int64_t j = k; j < system.columns; ++j) reflect(&system.at(k, j));
    reflect(&system.y[static_cast<size_t>(k)]);
  }
}

// Solves R x = rhs for the leading `columns` rows.
std::vector<double> back_substitute(System& system, std::vector<double> rhs) {
  for (int64_t i = system.columns - 1; i >= 0; --i) {
    double sum = rhs[static_cast<size_t>(i)];
    for (int64_t j = i + 1; j < system.columns; ++j)
      sum -= system.at(i, j) * rhs[static_cast<size_t>(j)];
    rhs[static_cast<size_t>(i)] = sum / system.at(i, i);
  }
  return rhs;
}

}  // namespace

LinearFit least_squares(std::span<const double> rows, int64_t num_coefficients,
                        std::span<const double> y, std::span<const double> weights) {
  const auto points = static_cast<int64_t>(y.size());
  check_argument(num_coefficients > 0, "a fit needs a coefficient, got {}", num_coefficients);
  check_argument(points >= num_coefficients,
                 "a fit of {} coefficients needs at least {} points, got {}", num_coefficients,
                 num_coefficients, points);
  check_argument(static_cast<int64_t>(rows.size()) == points * num_coefficients,
                 "rows must hold points x coefficients values, got {}", rows.size());
  check_argument(weights.size() == y.size(), "there must be one weight a point, got {}",
                 weights.size());

  System system;
  system.rows = points;
  system.columns = num_coefficients;
  system.a.resize(rows.size());
  system.y.resize(y.size());
  for (int64_t i = 0; i < points; ++i) {
    const auto point = static_cast<size_t>(i);
    check_argument(std::isfinite(y[point]), "point {} of the fit is not a finite number", i);
    check_argument(weights[point] > 0 && std::isfinite(weights[point]),
                   "weight {} of the fit must be above 0, got {}", i, weights[point]);
    system.y[point] = y[point] * weights[point];
    for (int64_t j = 0; j < num_coefficients; ++j) {
      const double value = rows[static_cast<size_t>(i * num_coefficients + j)];
      check_argument(std::isfinite(value), "point {} of the fit is not a finite number", i);
      system.at(i, j) = value * weights[point];
    }
  }
  scale_columns(system);
  factorise(system);

  LinearFit fit;
  const auto columns = static_cast<size_t>(num_coefficients);
  fit.coefficients = back_substitute(
      system, std::vector<double>(system.y.begin(), system.y.begin() + num_coefficients));
  for (size_t j = 0; j < columns; ++j) fit.coefficients[j] /= system.scale[j];

  // What Q^T y leaves below R is the residual's norm.
  double rss = 0;
  for (size_t i = columns; i < system.y.size(); ++i) rss += system.y[i] * system.y[i];
  fit.degrees_of_freedom = points - num_coefficients;
  fit.sigma = fit.degrees_of_freedom > 0
                  ? std::sqrt(rss / static_cast<double>(fit.degrees_of_freedom))
                  : std::numeric_limits<double>::quiet_NaN();

  // Variance of x_j = sigma^2 * squared norm of row j of R^-1; column k of R^-1 solves R x = e_k.
  std::vector<double> variance(columns, 0.0);
  for (size_t k = 0; k < columns; ++k) {
    std::vector<double> unit(columns, 0.0);
    unit[k] = 1;
    const std::vector<double> inverse_column = back_substitute(system, unit);
    for (size_t j = 0; j < columns; ++j) variance[j] += inverse_column[j] * inverse_column[j];
  }
  for (size_t j = 0; j < columns; ++j) {
    fit.standard_errors.push_back(fit.sigma * std::sqrt(variance[j]) / system.scale[j]);
  }

  for (size_t i = 0; i < y.size(); ++i) {
    double predicted = 0;
    for (size_t j = 0; j < columns; ++j) predicted += rows[i * columns + j] * fit.coefficients[j];
    fit.residuals.push_back(y[i] - predicted);
  }
  return fit;
}

}  // namespace fovea::worth
