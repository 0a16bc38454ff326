// Sampling: tokens drawn one at a time from softmax(logits / temperature) among the k likeliest, each fed
// back through the model with the keys and values of those before it kept in place.

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "kernels/error.h"
#include "run/evaluate.h"

namespace wobble {

namespace {

/// A uniform number in [0, 1), a function of (seed, index).
double uniform(uint64_t seed, uint64_t index) {
    const r123::Philox4x32::ctr_type counter = {
        {uint32_t(index), uint32_t(index >> 32), 0, 0x73616d70u /* "samp" */}};
    const r123::Philox4x32::key_type key = {{uint32_t(seed), uint32_t(seed >> 32)}};
    const auto bits = r123::Philox4x32{}(counter, key);
    return (double(bits[0]) * 0x1p32 + double(bits[1])) * 0x1p-64;
}

int32_t draw(const float* logits, int64_t vocab, double temperature, int64_t top_k, double u) {
    std::vector<int32_t> candidates(static_cast<size_t>(vocab));
    std::iota(candidates.begin(), candidates.end(), 0);
    // Equal logits are told apart by their number, so that the order is never in doubt.
    const auto likelier = [&](int32_t a, int32_t b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    const int64_t k = temperature == 0 ? 1 : top_k > 0 ? std::min(top_k, vocab) : vocab;
    if (k < vocab) {
        std::partial_sort(candidates.begin(), candidates.begin() + k, candidates.end(), likelier);
        candidates.resize(size_t(k));
    }
    if (k == 1) return candidates[0];
    const float most = *std::max_element(logits, logits + vocab);
    std::vector<double> weights;
    for (const int32_t c : candidates)
        weights.push_back(std::exp((double(logits[c]) - double(most)) / temperature));
    double left = u * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i) {
        left -= weights[i];
        if (left < 0) return candidates[i];
    }
    return candidates.back();
}

/// Bytes for a model of bytes; numbers separated by spaces for one of other tokens.
std::vector<int32_t> prompt_tokens(const std::string& prompt, int64_t vocab) {
    std::vector<int32_t> tokens;
    if (vocab == 256) {
        for (const char c : prompt) tokens.push_back(uint8_t(c));
    } else {
        std::istringstream in(prompt);
        for (int64_t id; in >> id;) {
            if (id < 0 || id >= vocab) {
                throw UserError("--prompt holds token " + std::to_string(id) +
                                "; expected numbers from 0 to " + std::to_string(vocab - 1));
            }
            tokens.push_back(int32_t(id));
        }
        if (!in.eof()) {
            throw UserError("--prompt '" + prompt +
                            "' is not a list of token numbers; this model's vocabulary of " +
                            std::to_string(vocab) + " is not bytes; expected numbers separated by spaces");
        }
        if (tokens.empty()) tokens.push_back(0);
    }
    if (tokens.empty()) throw UserError("--prompt is empty; expected at least one character to continue");
    return tokens;
}

void print_token(int32_t token, int64_t vocab) {
    // In text, byte 0 ends a document.
    if (vocab == 256) std::putchar(token == 0 ? '\n' : token);
    else std::printf("%d ", token);
    std::fflush(stdout);
}

}  // namespace

void run_sampling(const Command& command) {
    if (command.tokens < 0) {
        throw UserError("--tokens is " + std::to_string(command.tokens) + "; expected at least 0");
    }
    if (!(command.temperature >= 0)) {
        throw UserError("--temperature is " + std::to_string(command.temperature) + "; expected at least 0");
    }
    if (command.top_k < 0)
        throw UserError("--top-k is " + std::to_string(command.top_k) + "; expected at least 0");
    Trained trained = load_trained(command.run, command.checkpoint, command.options.threads, 1);
    const int64_t vocab = trained.model->config().vocab, context = trained.model->config().context;

    std::vector<int32_t> text = prompt_tokens(command.prompt, vocab);
    for (const int32_t token : text) print_token(token, vocab);
    int64_t held = 0;  // positions in the cache
    size_t fed = text.size() > size_t(context) ? text.size() - size_t(context) : 0;
    const float* logits = nullptr;
    for (int64_t i = 0; i < command.tokens; ++i) {
        if (held == context) {
            // Learned positions end here: start again from the second half.
            held = 0;
            fed = text.size() - size_t(context + 1) / 2;
        }
        while (fed < text.size()) logits = trained.model->append(trained.context, text[fed++], held++);
        text.push_back(
            draw(logits, vocab, command.temperature, command.top_k, uniform(command.seed, uint64_t(i))));
        print_token(text.back(), vocab);
    }
    std::putchar('\n');
}

}  // namespace wobble
