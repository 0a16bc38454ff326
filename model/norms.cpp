#include "model/norms.h"

namespace wobble {

const std::vector<NormFacts>& norm_facts() {
    static const std::vector<NormFacts> all = [] {
        std::vector<NormFacts> facts{{"none", "nothing", "", false, 0}};
        for_each_norm([&](auto norm) {
            facts.push_back({norm.word, norm.what, norm.source, norm.has_bias, norm.alpha});
        });
        return facts;
    }();
    return all;
}

template <>
const std::vector<std::string>& words<NormKind>() {
    static const std::vector<std::string> all = [] {
        std::vector<std::string> words;
        for (const NormFacts& facts : norm_facts()) words.push_back(facts.word);
        return words;
    }();
    return all;
}

}  // namespace wobble
