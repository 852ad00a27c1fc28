#include "daemon/control/engine_state.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace regroup {
namespace {

// Every pair that means something; all others must be refused.
TEST(EngineState, Next_EveryPair_IsAsDrawn) {
  using State = v1::EngineState;
  using Event = EngineEvent;
  const std::map<std::pair<State, Event>, State> drawn = {
      {{v1::ENGINE_STATE_PLANNED, Event::kForm}, v1::ENGINE_STATE_FORMING},
      {{v1::ENGINE_STATE_PLANNED, Event::kFormFailed}, v1::ENGINE_STATE_GONE},
      {{v1::ENGINE_STATE_PLANNED, Event::kDelete}, v1::ENGINE_STATE_DELETING},
      {{v1::ENGINE_STATE_FORMING, Event::kFormed}, v1::ENGINE_STATE_READY},
      {{v1::ENGINE_STATE_FORMING, Event::kFormFailed}, v1::ENGINE_STATE_GONE},
      {{v1::ENGINE_STATE_FORMING, Event::kLostForGood}, v1::ENGINE_STATE_FAILED},
      {{v1::ENGINE_STATE_FORMING, Event::kDelete}, v1::ENGINE_STATE_DELETING},
      {{v1::ENGINE_STATE_READY, Event::kMove}, v1::ENGINE_STATE_MOVING},
      {{v1::ENGINE_STATE_READY, Event::kFail}, v1::ENGINE_STATE_FAILED},
      {{v1::ENGINE_STATE_READY, Event::kDelete}, v1::ENGINE_STATE_DELETING},
      {{v1::ENGINE_STATE_MOVING, Event::kMoved}, v1::ENGINE_STATE_READY},
      {{v1::ENGINE_STATE_MOVING, Event::kMoveFailed}, v1::ENGINE_STATE_READY},
      {{v1::ENGINE_STATE_MOVING, Event::kFail}, v1::ENGINE_STATE_FAILED},
      {{v1::ENGINE_STATE_MOVING, Event::kDelete}, v1::ENGINE_STATE_DELETING},
      {{v1::ENGINE_STATE_FAILED, Event::kDelete}, v1::ENGINE_STATE_DELETING},
      {{v1::ENGINE_STATE_DELETING, Event::kDeleted}, v1::ENGINE_STATE_GONE},
  };
  for (int state = v1::EngineState_MIN; state <= v1::EngineState_MAX; ++state) {
    for (int event = 0; event <= static_cast<int>(Event::kDeleted); ++event) {
      const auto entry = drawn.find({static_cast<State>(state), static_cast<Event>(event)});
      const absl::optional<State> expected =
          entry == drawn.end() ? absl::nullopt : absl::make_optional(entry->second);
      EXPECT_EQ(Next(static_cast<State>(state), static_cast<Event>(event)), expected)
          << StateName(static_cast<State>(state)) << " + event " << event;
    }
  }
}

TEST(EngineState, StateName_IsTheEnumsNameWithoutPrefix) {
  for (int state = v1::ENGINE_STATE_PLANNED; state <= v1::EngineState_MAX; ++state) {
    EXPECT_EQ(std::string("ENGINE_STATE_") + StateName(static_cast<v1::EngineState>(state)),
              v1::EngineState_Name(state));
  }
}

}  // namespace
}  // namespace regroup
