// Which kernels the software machine ran.
#pragma once

#include <set>
#include <string>

namespace simt {

/// By type, so far.
const std::set<std::string>& launched();

}  // namespace simt
