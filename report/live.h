// The report of runs that go on: a server on this machine alone.
#pragma once

#include <vector>

#include "report/history.h"

namespace wobble {

/// Serves the page on 127.0.0.1 until SIGINT or SIGTERM, and then returns. `port` 0: 8080, or the next that
/// is free. Requests that were not made to this machine by its name are refused, so that no page from
/// elsewhere can read a run by pointing its own name here. UserError when the port is in use.
void serve_report(std::vector<History>& runs, int port);

}  // namespace wobble
