// A request before and after a win, as pages draw it.
#pragma once

#include "apps/cli/worth_text.h"
#include "fovea/worth/report_page.h"

namespace fovea::cli {

/// Adds a heading, the request's parts with today's kernel and with one `speedup` times faster, the
/// saving in words and the notes.
void add_request(worth::ReportPage* page, const RequestWin& request, double speedup);

}  // namespace fovea::cli
