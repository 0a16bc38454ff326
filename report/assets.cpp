#include "report/assets.h"

// The assembler reads the files as they are, from the directory in which the compiler runs: the root of the
// source tree.
#define ASSET(name, path)                                                                      \
    __asm__(".pushsection .rodata\n.global asset_" #name "\nasset_" #name ":\n.incbin \"" path \
            "\"\n.global asset_" #name "_end\nasset_" #name "_end:\n.byte 0\n.popsection\n");  \
    extern "C" const char asset_##name[], asset_##name##_end[];

ASSET(page, "report/page.html")
ASSET(style, "report/page.css")
ASSET(data, "report/data.js")
ASSET(colours, "report/colours.js")
ASSET(marks, "report/marks.js")
ASSET(curves, "report/curves.js")
ASSET(heatmap, "report/heatmap.js")
ASSET(maps, "report/maps.js")
ASSET(events, "report/events.js")
ASSET(evidence, "report/evidence.js")
ASSET(main, "report/main.js")
ASSET(dygraphs, DYGRAPHS "/dygraph.min.js")
ASSET(dygraphs_style, DYGRAPHS "/dygraph.min.css")

namespace wobble {

#define VIEW(name) std::string_view(asset_##name, size_t(asset_##name##_end - asset_##name))

const Assets& assets() {
    static const Assets all = {VIEW(page),
                               VIEW(style),
                               VIEW(dygraphs),
                               VIEW(dygraphs_style),
                               {VIEW(data), VIEW(colours), VIEW(marks), VIEW(curves), VIEW(heatmap),
                                VIEW(maps), VIEW(events), VIEW(evidence), VIEW(main)}};
    return all;
}

}  // namespace wobble
