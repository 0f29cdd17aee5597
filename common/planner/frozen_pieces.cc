#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/planner/fill.h"

namespace atl::planner {
namespace {

absl::Status Wrong(size_t piece, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "FROZEN_PIECES",
                   fmt::format("frozen piece {}: {}", piece, message));
}

// Pieces whose outputs piece `i` reads from the layers before its own.
void AddReads(const std::vector<FrozenPiece>& pieces, const Profile& profile, size_t i, std::vector<int32_t>* reads) {
  const FrozenPiece& piece = pieces[i];
  const auto add = [&](int32_t component, int32_t end_layer) {
    for (size_t other = 0; other < pieces.size(); ++other) {
      const FrozenPiece& from = pieces[other];
      if (from.component != component || from.end_layer != end_layer) continue;
      if (from.first_sample >= piece.first_sample + piece.samples) continue;
      if (piece.first_sample >= from.first_sample + from.samples) continue;
      reads->push_back(static_cast<int32_t>(other));
    }
  };
  if (piece.first_layer > 0) {
    add(piece.component, piece.first_layer);
    return;
  }
  for (const int32_t read : profile.frozen[piece.component].reads) {
    add(read, static_cast<int32_t>(profile.frozen[read].layers.size()));
  }
}

}  // namespace

absl::Status ValidateFrozen(const std::vector<FrozenPiece>& pieces,
                            const std::vector<FrozenComponentProfile>& components, int32_t batch, int32_t ranks) {
  int32_t component = 0;
  int32_t layer = 0;
  int32_t end_layer = 0;  // of the pieces of this run of layers
  int32_t sample = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FrozenPiece& piece = pieces[i];
    if (component == static_cast<int32_t>(components.size())) return Wrong(i, "all work is done before it");
    const auto layers = static_cast<int32_t>(components[component].layers.size());
    if (piece.component != component || piece.first_layer != layer || piece.first_sample != sample) {
      return Wrong(i, fmt::format("expected component {}, layer {}, sample {}, found component {}, layer {}, sample {}",
                                  component, layer, sample, piece.component, piece.first_layer, piece.first_sample));
    }
    if (sample == 0) end_layer = piece.end_layer;
    if (piece.end_layer != end_layer || end_layer <= layer || end_layer > layers) {
      return Wrong(i, fmt::format("expected an end_layer from {} to {}, the same for all samples, found {}", layer + 1,
                                  layers, piece.end_layer));
    }
    if (piece.samples < 1 || piece.samples > batch - sample) {
      return Wrong(i, fmt::format("expected 1 to {} samples, found {}", batch - sample, piece.samples));
    }
    if (piece.rank < 0 || piece.rank >= ranks) {
      return Wrong(i, fmt::format("expected a rank below {}, found {}", ranks, piece.rank));
    }
    sample += piece.samples;
    if (sample < batch) continue;
    sample = 0;
    layer = end_layer;
    if (layer < layers) continue;
    layer = 0;
    ++component;
  }
  if (component == static_cast<int32_t>(components.size())) return absl::OkStatus();
  return Wrong(pieces.size(), fmt::format("component {}, layer {}, sample {}: expected a piece, found none", component,
                                          layer, sample));
}

std::vector<schedule::FrozenCost> FrozenCosts(const std::vector<FrozenPiece>& pieces, const Profile& profile,
                                              const std::vector<double>& slowdown) {
  std::vector<schedule::FrozenCost> costs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FrozenPiece& piece = pieces[i];
    const std::vector<FrozenLayerProfile>& layers = profile.frozen[piece.component].layers;
    schedule::FrozenCost& cost = costs.emplace_back();
    for (int32_t layer = piece.first_layer; layer < piece.end_layer; ++layer) {
      cost.seconds += FrozenSeconds(layers[layer], piece.samples);
    }
    const auto rank = static_cast<size_t>(piece.rank);
    if (rank < slowdown.size()) cost.seconds *= slowdown[rank];
    AddReads(pieces, profile, i, &cost.reads);
    if (!cost.reads.empty()) {
      cost.transfer_seconds = TransferSeconds(profile, layers[piece.first_layer].input_bytes * piece.samples);
    }
    // What lies between two layers is gone when the next has read it.
    if (piece.end_layer == static_cast<int32_t>(layers.size())) {
      cost.output_bytes = layers.back().output_bytes * piece.samples;
    }
  }
  return costs;
}

}  // namespace atl::planner
