// Sites by what names them: a row of table sites. Looking one up needs no string of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "probes/observation.h"

namespace wobble {

/// What names a site: its place in the model, its phase, the kernel, and what of it is observed.
struct SiteKey {
    std::string_view site;
    Phase phase;
    std::string_view kernel, channel;

    bool operator==(const SiteKey&) const = default;
};

/// The same, kept, and the layer of the place.
struct SiteName {
    std::string site;
    int layer;
    Phase phase;
    std::string kernel, channel;

    SiteName(const SiteKey& key, int of_layer)
        : site(key.site), layer(of_layer), phase(key.phase), kernel(key.kernel), channel(key.channel) {}
    operator SiteKey() const { return {site, phase, kernel, channel}; }
};

struct SiteHash {
    using is_transparent = void;
    size_t operator()(const SiteKey& key) const {
        const std::hash<std::string_view> hash;
        // Any odd multiplier keeps (a, b) and (b, a) apart.
        return ((hash(key.site) * 31 + hash(key.kernel)) * 31 + hash(key.channel)) * 31 + size_t(key.phase);
    }
};

struct SiteEqual {
    using is_transparent = void;
    bool operator()(const SiteKey& a, const SiteKey& b) const { return a == b; }
};

using SiteMap = std::unordered_map<SiteName, int64_t, SiteHash, SiteEqual>;

}  // namespace wobble
