// Something that a detector saw in a run and that somebody should know of.
#pragma once

#include <cstdint>
#include <string>

namespace wobble {

/// Note: worth reading later. Warning: look at it soon. Alarm: the run is likely lost or broken.
enum class Severity { Note, Warning, Alarm };
const char* severity_name(Severity);

struct Event {
    int64_t step;
    std::string detector;
    int version;  // of the detector's rule: numbers of different versions do not compare
    Severity severity;
    std::string site;     // what the number is about: "loss", h.3.mlp.fc.weight, h.2.attn head 5
    double expected;      // about what the number should have been
    double seen;          // NaN and infinities as they were
    std::string summary;  // a sentence for people
    std::string detail;   // JSON: what the detector went by
};

}  // namespace wobble
