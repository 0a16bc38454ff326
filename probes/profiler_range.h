// Ranges in NVIDIA's profilers (NVTX), named as probes name their sites: "h.3.attn.qkv forward".
#pragma once

#include "probes/recorder.h"

namespace wobble {

/// A range while it lives; nothing where no profiler listens.
class ProfilerRange {
  public:
    explicit ProfilerRange(const Site& site);
    ~ProfilerRange();
    ProfilerRange(const ProfilerRange&) = delete;
    ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace wobble
