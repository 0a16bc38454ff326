#include "run/snapshot.h"

#include <utility>

namespace wobble {
namespace {

/// The tensors of a buffer.
std::vector<TensorView> views(const ParameterTable& table, const std::string& prefix, const float* buffer) {
    std::vector<TensorView> views;
    for (const Parameter& p : table.parameters)
        views.push_back({prefix + p.name, DType::F32, p.shape, buffer + p.offset});
    return views;
}

/// The counters, as tensors, so that the checksums cover them.
std::vector<TensorView> views(const Counters& at) {
    return {{"step", DType::I64, {1}, &at.step},
            {"tokens", DType::I64, {1}, &at.tokens},
            {"cursor", DType::I64, {1}, &at.cursor}};
}

void read(const SafetensorsFile& file, const std::vector<TensorView>& views) {
    for (const TensorView& view : views) read_tensor(file, view, const_cast<void*>(view.data));
}

}  // namespace

void write_snapshot(const std::string& run, const char* folder, const SnapshotView& snapshot,
                    const ParameterTable& table, int keep) {
    std::vector<TensorView> state = views(snapshot.at);
    for (const auto& [prefix, buffer] : {std::pair("m.", snapshot.m), std::pair("v.", snapshot.v)}) {
        const std::vector<TensorView> moments = views(table, prefix, buffer);
        state.insert(state.end(), moments.begin(), moments.end());
    }
    std::vector<TensorView> detectors;
    for (const auto& [name, numbers] : snapshot.detectors)
        detectors.push_back({name, DType::F64, {int64_t(numbers.size())}, numbers.data()});
    write_checkpoint(run, snapshot.at.step, views(table, "", snapshot.weights), state, keep, detectors,
                     folder);
}

Snapshot read_snapshot(const CheckpointFiles& files, const ParameterTable& table) {
    Snapshot snapshot;
    read(files.state, views(snapshot.at));
    for (const auto& [file, prefix, buffer] :
         {std::tuple(&files.model, "", &snapshot.weights), std::tuple(&files.state, "m.", &snapshot.m),
          std::tuple(&files.state, "v.", &snapshot.v)}) {
        buffer->resize(size_t(table.buffer_size));
        read(*file, views(table, prefix, buffer->data()));
    }
    if (!files.detectors) return snapshot;
    for (const TensorView& tensor : files.detectors->tensors()) {
        std::vector<double>& numbers = snapshot.detectors[tensor.name];
        numbers.resize(size_t(byte_count(tensor)) / sizeof(double));
        read_tensor(*files.detectors, {tensor.name, DType::F64, tensor.shape, nullptr}, numbers.data());
    }
    return snapshot;
}

}  // namespace wobble
