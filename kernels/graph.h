// CUDA graphs: what a step gives the device, hundreds of kernels and copies, launched as one.
//
// The work is captured anew each time, which costs the host little, and what has changed since (a learning
// rate, where a probe leaves its results) is put into the graph that is there already: nothing has to stay as
// it was from step to step.
#pragma once

#include <map>

#include "kernels/context.h"

namespace wobble {

class Graphs {
  public:
    Graphs() = default;
    ~Graphs();
    Graphs(const Graphs&) = delete;
    Graphs& operator=(const Graphs&) = delete;

    /// Does `work`, which gives kernels and copies to the device and waits for nothing. Work of one `kind`
    /// has about the same kernels each time; its first time is no graph, since it may need memory still.
    template <class Work>
    void run(Device device, int kind, Work&& work) {
        if (device == Device::Cpu || !kinds_.contains(kind)) {
            kinds_[kind] = nullptr;
            work();
            return;
        }
        begin();
        try {
            work();
        } catch (...) {
            abandon();
            throw;
        }
        launch(kind);
    }

  private:
    void begin();
    void abandon();
    void launch(int kind);

    std::map<int, void*> kinds_;  // cudaGraphExec_t, or null
};

}  // namespace wobble
