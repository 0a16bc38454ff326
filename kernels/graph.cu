#include "kernels/cuda.h"
#include "kernels/graph.h"
#include "kernels/stream.h"

namespace wobble {

#ifdef WOBBLE_CUDA

Graphs::~Graphs() {
    for (const auto& [kind, graph] : kinds_)
        if (graph) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

void Graphs::begin() {
    check_cuda(cudaStreamBeginCapture(cuda_stream(), cudaStreamCaptureModeRelaxed), "a CUDA graph");
}

void Graphs::abandon() {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(cuda_stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();  // it has been told of
}

void Graphs::launch(int kind) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(cuda_stream(), &graph), "a CUDA graph");
    auto ready = static_cast<cudaGraphExec_t>(kinds_[kind]);
    cudaGraphExecUpdateResultInfo info = {};
    if (ready && cudaGraphExecUpdate(ready, graph, &info) != cudaSuccess) {
        cudaGetLastError();  // other kernels than last time: it is made anew
        cudaGraphExecDestroy(ready);
        ready = nullptr;
    }
    if (!ready) check_cuda(cudaGraphInstantiate(&ready, graph, 0), "a CUDA graph");
    kinds_[kind] = ready;
    cudaGraphDestroy(graph);
    check_cuda(cudaGraphLaunch(ready, cuda_stream()), "a CUDA graph");
}

#else

Graphs::~Graphs() = default;
void Graphs::begin() {}
void Graphs::abandon() {}
void Graphs::launch(int) {}

#endif

}  // namespace wobble
