#include "common/schedule/action.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"

namespace atl::schedule {
namespace {

constexpr int64_t kMaxActions = 10'000'000;
constexpr std::string_view kLetters = "FIWBERC";  // in the order of ActionKind

absl::Status TextError(size_t rank, size_t position, std::string_view reason) {
  return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_TEXT",
                   fmt::format("schedule: rank {}, position {}: {}", rank, position, reason));
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// A decimal number below kMaxActions without sign or leading zero, so that every schedule has one text.
std::optional<int32_t> ParseNumber(std::string_view digits) {
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  int32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (digits[0] == '-' || value >= kMaxActions) return std::nullopt;
  return value;
}

absl::StatusOr<Action> ParseToken(std::string_view token, size_t rank, size_t position) {
  const size_t letter = token.find_first_not_of("0123456789");
  const std::optional<ActionKind> kind = letter == std::string_view::npos ? std::nullopt : KindOf(token[letter]);
  if (!kind.has_value()) {
    return TextError(
        rank, position,
        fmt::format("expected <stage><F|C|I|W|B><micro-batch>, E<piece> or R<stage>, found {}", Quoted(token)));
  }
  if (!HasMicroBatch(*kind)) {
    const std::optional<int32_t> number = ParseNumber(token.substr(1));
    if (letter != 0 || !number.has_value()) {
      return TextError(rank, position,
                       fmt::format("expected {} and a {} below {}, found {}", KindLetter(*kind),
                                   *kind == ActionKind::kFrozen ? "piece" : "stage", kMaxActions, Quoted(token)));
    }
    return *kind == ActionKind::kFrozen ? Action{*kind, 0, *number} : Action{*kind, *number, 0};
  }
  const std::optional<int32_t> stage = ParseNumber(token.substr(0, letter));
  const std::optional<int32_t> micro_batch = ParseNumber(token.substr(letter + 1));
  if (!stage.has_value() || !micro_batch.has_value()) {
    return TextError(rank, position,
                     fmt::format("expected a {} below {} in {}", stage.has_value() ? "micro-batch" : "stage",
                                 kMaxActions, Quoted(token)));
  }
  return Action{*kind, *stage, *micro_batch};
}

// Empty cells are idle slots in PyTorch's files; a schedule here is an order only, so they are left out.
absl::StatusOr<std::vector<Action>> ParseRank(std::string_view line, size_t rank, int64_t* budget) {
  std::vector<Action> actions;
  size_t position = 0;
  for (size_t begin = 0; begin <= line.size(); ++position) {
    const size_t end = std::min(line.find(',', begin), line.size());
    const std::string_view token = Trim(line.substr(begin, end - begin));
    begin = end + 1;
    if (token.empty()) continue;
    if (--*budget < 0) {
      return TextError(rank, position, fmt::format("expected at most {} actions, found more", kMaxActions));
    }
    ATOLL_ASSIGN_OR_RETURN(Action action, ParseToken(token, rank, position));
    actions.push_back(action);
  }
  if (actions.empty()) return TextError(rank, 0, "expected at least one action, found none");
  return actions;
}

// A count, one more than the highest number seen, and where that number stood first.
struct Highest {
  explicit Highest(int32_t* counted) : count(counted) {}
  void See(int32_t number, size_t at_rank, size_t at_position) {
    if (number < *count) return;
    *count = number + 1;
    rank = at_rank;
    position = at_position;
  }

  int32_t* count;
  size_t rank = 0;
  size_t position = 0;
};

// Sets stages, micro_batches and rank_of_stage from the actions. Counts are at most the number of actions, or there is
// a gap: so nothing larger than the text is allocated.
absl::Status InferShape(Schedule* schedule) {
  size_t actions = 0;
  Highest stages(&schedule->stages);
  Highest micro_batches(&schedule->micro_batches);
  Highest pieces(&schedule->frozen_pieces);
  for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
    actions += schedule->ranks[rank].size();
    for (size_t position = 0; position < schedule->ranks[rank].size(); ++position) {
      const Action& action = schedule->ranks[rank][position];
      if (action.kind == ActionKind::kFrozen) {
        pieces.See(action.micro_batch, rank, position);
        continue;
      }
      stages.See(action.stage, rank, position);
      if (HasMicroBatch(action.kind)) micro_batches.See(action.micro_batch, rank, position);
    }
  }
  if (schedule->stages == 0 || schedule->micro_batches == 0) {
    return TextError(0, 0, "expected stages with micro-batches, found only frozen pieces or reductions");
  }
  const auto gap = [schedule](std::string_view what, int64_t missing, const Highest& highest) {
    return TextError(
        highest.rank, highest.position,
        fmt::format("{}: {} {} of {} has no action", ToString(schedule->ranks[highest.rank][highest.position]), what,
                    missing, *highest.count));
  };
  std::vector<int32_t> rank_of(std::min<size_t>(schedule->stages, actions + 1), -1);
  std::vector<bool> has_micro_batch(std::min<size_t>(schedule->micro_batches, actions + 1), false);
  std::vector<bool> has_piece(std::min<size_t>(schedule->frozen_pieces, actions + 1), false);
  for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
    for (size_t position = 0; position < schedule->ranks[rank].size(); ++position) {
      const Action& action = schedule->ranks[rank][position];
      const auto number = static_cast<size_t>(action.micro_batch);
      if (action.kind == ActionKind::kFrozen) {
        if (number < has_piece.size()) has_piece[number] = true;
        continue;
      }
      if (HasMicroBatch(action.kind) && number < has_micro_batch.size()) has_micro_batch[number] = true;
      if (static_cast<size_t>(action.stage) >= rank_of.size()) continue;
      int32_t& owner = rank_of[action.stage];
      if (owner >= 0 && owner != static_cast<int32_t>(rank)) {
        return TextError(rank, position,
                         fmt::format("stage {} of {} lies on rank {} already", action.stage, ToString(action), owner));
      }
      owner = static_cast<int32_t>(rank);
    }
  }
  if (const auto stage = std::find(rank_of.begin(), rank_of.end(), -1); stage != rank_of.end()) {
    return gap("stage", stage - rank_of.begin(), stages);
  }
  if (const auto batch = std::find(has_micro_batch.begin(), has_micro_batch.end(), false);
      batch != has_micro_batch.end()) {
    return gap("micro-batch", batch - has_micro_batch.begin(), micro_batches);
  }
  if (const auto piece = std::find(has_piece.begin(), has_piece.end(), false); piece != has_piece.end()) {
    return gap("frozen piece", piece - has_piece.begin(), pieces);
  }
  schedule->rank_of_stage = std::move(rank_of);
  return absl::OkStatus();
}

}  // namespace

char KindLetter(ActionKind kind) {
  return kLetters[static_cast<size_t>(kind)];
}

std::optional<ActionKind> KindOf(char letter) {
  const size_t kind = kLetters.find(letter);
  if (kind == std::string_view::npos) return std::nullopt;
  return static_cast<ActionKind>(kind);
}

bool HasMicroBatch(ActionKind kind) {
  return kind != ActionKind::kFrozen && kind != ActionKind::kReduce;
}

std::string ToString(const Action& action) {
  if (HasMicroBatch(action.kind)) {
    return fmt::format("{}{}{}", action.stage, KindLetter(action.kind), action.micro_batch);
  }
  return fmt::format("{}{}", KindLetter(action.kind),
                     action.kind == ActionKind::kFrozen ? action.micro_batch : action.stage);
}

std::string ToText(const Schedule& schedule) {
  fmt::memory_buffer text;
  for (const auto& rank : schedule.ranks) {
    for (size_t i = 0; i < rank.size(); ++i) {
      fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ",", ToString(rank[i]));
    }
    text.push_back('\n');
  }
  return fmt::to_string(text);
}

absl::StatusOr<Schedule> ParseText(std::string_view text) {
  Schedule schedule;
  int64_t budget = kMaxActions;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    ATOLL_ASSIGN_OR_RETURN(std::vector<Action> actions, ParseRank(text.substr(0, end), schedule.ranks.size(), &budget));
    schedule.ranks.push_back(std::move(actions));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (schedule.ranks.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_TEXT",
                     "schedule: expected one line per rank, found no line");
  }
  ATOLL_RETURN_IF_ERROR(InferShape(&schedule));
  return schedule;
}

}  // namespace atl::schedule
