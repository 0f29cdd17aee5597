#include "client/sampling/draw_progress.h"

#include <algorithm>
#include <utility>

#include "client/table.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

constexpr int kMaxCells = 30;

}  // namespace

void DrawProgress::OnRequest(int64_t images) {
  request_images_ = images;
  request_done_ = 0;
  step_ = 0;
  total_steps_ = 0;
  position_ = 0;
}

void DrawProgress::OnRequestLost() {
  done_ -= std::exchange(request_done_, 0);
}

void DrawProgress::OnQueued(int64_t position) {
  position_ = position;
}

// Waiting in the router's queue says nothing about the pace, so that the clock starts with the first step.
void DrawProgress::Begin(absl::Duration now) {
  if (began_) return;
  began_ = now;
  share_at_begin_ = share();
}

void DrawProgress::OnStep(absl::Duration now, int32_t step, int32_t total_steps) {
  step_ = step;
  total_steps_ = total_steps;
  Begin(now);
}

void DrawProgress::OnImage(absl::Duration now) {
  ++done_;
  ++request_done_;
  Begin(now);
}

double DrawProgress::share() const {
  if (images_ <= 0) return 1;
  double done = static_cast<double>(done_);
  if (total_steps_ > 0) {
    done += static_cast<double>(std::max<int64_t>(request_images_ - request_done_, 0)) * step_ / total_steps_;
  }
  return std::min(done / static_cast<double>(images_), 1.0);
}

std::optional<absl::Duration> DrawProgress::TimeLeft(absl::Duration now) const {
  const double now_share = share();
  if (!began_ || now_share <= share_at_begin_) return std::nullopt;
  return (now - *began_) * ((1 - now_share) / (now_share - share_at_begin_));
}

std::string DrawProgress::Figures(absl::Duration now) const {
  std::string figures = fmt::format("{}/{} images", done_, images_);
  if (total_steps_ > 0) {
    figures += fmt::format("  step {}/{}", step_, total_steps_);
  } else if (position_ > 0) {
    figures += fmt::format("  queued behind {} images", position_);
  }
  if (const auto left = TimeLeft(now)) figures += "  " + DurationText(*left) + " left";
  return figures;
}

std::string DrawProgress::Line(absl::Duration now, int width, bool colour) const {
  const std::string figures = "  " + Figures(now);
  const int cells = std::clamp(width - DisplayWidth(figures), 0, kMaxCells);
  const std::string bar = Bar(share(), cells);
  return (colour && cells > 0 ? "\x1b[36m" + bar + "\x1b[0m" : bar) + Shorten(figures, width - cells);
}

}  // namespace atl::client
