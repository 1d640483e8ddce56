// Weighted least squares, and the laws that sweeps are fitted with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fovea::worth {

/// Which error a fit keeps small: seconds, or percent. On a sweep over three decades of length they
/// differ: the first listens to the longest prompts, the second to all of them alike.
enum class Weighting { kAbsolute, kRelative };

/// "absolute" or "relative".
const char* weighting_name(Weighting weighting);

/// A linear fit. Standard errors are those of the usual estimate sigma^2 = RSS / (points -
/// coefficients), as numpy.polyfit(cov=True) and scipy.optimize.curve_fit(absolute_sigma=False)
/// give them.
struct LinearFit {
  std::vector<double> coefficients;
  std::vector<double> standard_errors;  // NaN when there are no degrees of freedom
  std::vector<double> residuals;        // y - fit, unweighted, one per point
  double sigma = 0;                     // of one weighted residual; NaN without degrees of freedom
  int64_t degrees_of_freedom = 0;
};

/// Solves min sum_i (weights[i] * (y[i] - sum_j rows[i, j] * x[j]))^2 by Householder QR of scaled
/// columns. *Shapes*: rows (points, num_coefficients), y (points), weights (points). Throws
/// kInvalidArgument for fewer points than coefficients, values that are not finite, or columns that
/// depend on each other.
LinearFit least_squares(std::span<const double> rows, int64_t num_coefficients,
                        std::span<const double> y, std::span<const double> weights);

/// One backend's measured sweep: y against prompt length or context, in tokens.
struct Sweep {
  std::string backend;
  std::vector<double> tokens;
  std::vector<double> values;  // ttft in seconds, or itl in ms
};

/// t(n) = a + b n + c n^2 of a prefill sweep: overhead, what grows with the tokens (matmuls),
/// attention.
struct PrefillFit {
  std::string backend;
  Weighting weighting = Weighting::kAbsolute;
  bool b_shared = false;                // b was fitted jointly with the other backends
  double a_s = 0, b_s = 0, c_s = 0;     // seconds, per token, per token^2
  double a_se = 0, b_se = 0, c_se = 0;  // their standard errors
  std::vector<double> residuals_s;
  double sigma = 0;  // seconds, or a fraction when weighting is relative
  int64_t degrees_of_freedom = 0;
  double longest_tokens = 0;  // predictions beyond are extrapolated

  double ttft_s(double tokens) const { return a_s + b_s * tokens + c_s * tokens * tokens; }
  /// c n^2 / (b n + c n^2): attention's share of the time that grows with the prompt.
  double quadratic_share(double tokens) const;
};

/// Fits one backend alone. Needs three lengths or more (four for standard errors).
PrefillFit fit_prefill(const Sweep& sweep, Weighting weighting);

/// Fits several backends at once with b in common: the matmuls are the same, whatever attention
/// does.
std::vector<PrefillFit> fit_prefill_jointly(std::span<const Sweep> sweeps, Weighting weighting);

/// Indices of values that lie below half of what the other lengths' fit predicts: on a prefill
/// sweep the mark of a prompt that was in a cache. Empty with fewer than five lengths, which cannot
/// tell.
std::vector<size_t> far_below_fit(const Sweep& sweep);

/// itl(n) = a + b n of a decode sweep. The slope is the time to read one more token of KV cache.
struct DecodeFit {
  std::string backend;
  double intercept_ms = 0, intercept_se_ms = 0;
  double slope_us_per_token = 0, slope_se_us_per_token = 0;
  std::vector<double> residuals_ms;
  double longest_tokens = 0;

  double itl_ms(double tokens) const { return intercept_ms + slope_us_per_token * tokens / 1e3; }
  /// Attention's share of a decode step at this context, as far as it grows with the context.
  double attention_share(double tokens) const;
  /// Bandwidth with which the context is read, GB/s (1e9 bytes), from the KV cache's bytes per
  /// token.
  double bandwidth_gbps(double kv_bytes_per_token) const;
  /// How many times faster the context could be read at the card's copy rate: the most that any
  /// decode kernel can still win. Below 1 means that the slope or the rate is mismeasured.
  double kernel_headroom(double kv_bytes_per_token, double copy_gbps) const;
};

/// Needs two contexts or more (three for standard errors).
DecodeFit fit_decode(const Sweep& sweep);

/// A share of step time that somebody published for one length.
struct SharePoint {
  double tokens = 0;
  double share = 0;
};

/// p(n) = c n / (b + c n): the law to use when nothing better is known than a published share or
/// two; say so when you use it. It has one free number, c / b: the shorter length fixes it, the
/// longer one tells how far to trust it.
struct TwoPointLaw {
  double ratio = 0;            // c / b, per token
  double predicted_share = 0;  // of the second point
  double published_share = 0;  // of the second point

  double share(double tokens) const { return ratio * tokens / (1 + ratio * tokens); }
};

/// Throws kInvalidArgument unless both shares are in (0, 1) and 0 < first.tokens < second.tokens.
TwoPointLaw two_point_law(const SharePoint& first, const SharePoint& second);

}  // namespace fovea::worth
