#include "apps/cli/report_request.h"

#include <fmt/format.h>

namespace fovea::cli {

using worth::StackedBar;
using worth::StackedChart;

void add_request(worth::ReportPage* page, const RequestWin& request, double speedup) {
  const worth::AttentionWin& win = request.win;
  const worth::RequestWorth result = worth::request_worth(request.shape, win);
  const double prefill_attention = win.prefill_share * result.prefill_ms;
  const double decode_attention = win.decode_share * result.decode_ms;
  const auto bar = [&](const std::string& name, double saved_prefill, double saved_decode) {
    return StackedBar{name,
                      {{"attention in prefill", prefill_attention - saved_prefill},
                       {"rest of prefill", result.prefill_ms - prefill_attention},
                       {"attention in decode", decode_attention - saved_decode},
                       {"rest of decode", result.decode_ms - decode_attention},
                       {"queue", request.shape.queue_ms}}};
  };
  page->add_heading("What a request notices");
  page->add_chart(
      StackedChart{"A request before and after",
                   "ms",
                   {bar("now", 0, 0), bar(fmt::format("{:g}x kernel", speedup),
                                          result.saved_prefill_ms, result.saved_decode_ms)}});
  page->add_text(request_text(request.shape, win));
  for (const std::string& note : request.notes) page->add_text(note);
}

}  // namespace fovea::cli
