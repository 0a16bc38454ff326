#include "run/flight_recorder.h"

#include <filesystem>

#include "kernels/error.h"
#include "probes/run_writer.h"
#include "run/trainer.h"

namespace wobble {

namespace fs = std::filesystem;

FlightRecorder::FlightRecorder(const Options& o, std::string run)
    : every_(o.snapshots > 0 ? o.snapshot_every : 0),
      most_(o.snapshots),
      sequences_(o.batch),
      context_(o.model.context),
      on_disk_(o.snapshot_to == "disk"),
      run_(std::move(run)) {}

void FlightRecorder::before_step(Trainer& trainer) {
    if (every_ == 0 || trainer.steps_done() % every_ != 0) return;
    if (on_disk_) {
        trainer.write_checkpoint(run_, int(most_), rolling_snapshots);
        return;
    }
    Snapshot reused;  // the oldest one's memory
    if (int64_t(snapshots_.size()) == most_) {
        reused = std::move(snapshots_.front());
        snapshots_.pop_front();
    }
    trainer.take_snapshot(reused);
    snapshots_.push_back(std::move(reused));
}

void FlightRecorder::write_batches(RunWriter& db) {
    for (StepBatch& batch : batches_) {
        std::vector<TokensRow> rows;
        for (size_t i = 0; i < batch.inputs.size(); i += size_t(context_)) {
            const auto sequence = int64_t(i) / context_;
            const auto of = [&](const std::vector<int32_t>& all) {
                return std::vector(all.begin() + int64_t(i), all.begin() + int64_t(i) + context_);
            };
            rows.push_back(
                {sequence / sequences_, sequence % sequences_, of(batch.inputs), of(batch.targets)});
        }
        db.add_tokens(batch.step, std::move(rows));
    }
    batches_.clear();
}

/// Returns their steps.
std::vector<int64_t> FlightRecorder::keep_snapshots(const Trainer& trainer) {
    std::vector<int64_t> steps;
    if (on_disk_) {
        for (const int64_t step : checkpoint_steps(run_, rolling_snapshots)) {
            const fs::path kept = fs::path(run_) / kept_snapshots / checkpoint_name(step);
            if (fs::exists(kept)) continue;
            std::error_code error;
            fs::rename(fs::path(run_) / rolling_snapshots / checkpoint_name(step), kept, error);
            if (error)
                throw UserError("cannot write " + kept.string() + ": " + error.message() +
                                "; make it a directory that can be written to");
            steps.push_back(step);
        }
        return steps;
    }
    for (const Snapshot& s : snapshots_) {
        if (fs::exists(fs::path(run_) / kept_snapshots / checkpoint_name(s.at.step))) continue;
        write_snapshot(run_, kept_snapshots, SnapshotView::of(s), trainer.table(), 0);
        steps.push_back(s.at.step);
    }
    return steps;
}

std::string FlightRecorder::after_step(Trainer& trainer, RunWriter& db, int64_t step) {
    const Batch& batch = trainer.batch();
    batches_.push_back({step, batch.inputs, batch.targets});
    bool alarm = false;
    for (const Event& event : trainer.events()) alarm |= event.severity == Severity::Alarm;
    if (alarm) db.add_ring(trainer.take_ring());
    std::string said;
    if (alarm && step - last_incident_ >= rest && incidents_ < most_incidents) {
        last_incident_ = step, ++incidents_, following_ = batches_after + 1;
        std::string steps;
        for (const int64_t kept : keep_snapshots(trainer))
            steps += (steps.empty() ? "" : ", ") + std::to_string(kept);
        if (!steps.empty())
            said = "kept in " + run_ + "/" + kept_snapshots + ": the state after step " + steps;
        if (incidents_ == most_incidents) {
            said += std::string(said.empty() ? "" : "; ") + "this is alarm number " +
                    std::to_string(incidents_) + " with evidence, of later ones none is kept";
        }
    }
    if (following_ > 0) --following_, write_batches(db);
    while (int64_t(batches_.size()) >= batches_before) batches_.pop_front();
    return said;
}

}  // namespace wobble
