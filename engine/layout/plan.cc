#include "engine/layout/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace regroup {
namespace {

// Appends copies of one direction, none longer than the bound.
class Builder {
 public:
  Builder(int64_t max_copy_elements, MovePlan* plan)
      : max_copy_elements_(max_copy_elements), plan_(plan) {}

  void Add(int unit, int from, int to, Interval interval) {
    for (int64_t begin = interval.begin; begin < interval.end; begin += max_copy_elements_) {
      const int64_t end = std::min(interval.end, begin + max_copy_elements_);
      plan_->copies.push_back({unit, from, to, {begin, end}});
    }
    (from == to ? plan_->elements_kept : plan_->elements_moved) += interval.size();
  }

  int64_t max_copy_elements() const { return max_copy_elements_; }

 private:
  const int64_t max_copy_elements_;
  MovePlan* const plan_;
};

// Everything that `to` wants lies with exactly one holder, itself perhaps.
void FromShards(const Unit& unit, const Layout& source, int to, Interval wanted, Builder* builder) {
  const int64_t shard = ShardSize(unit.numel, source.size());
  for (int64_t begin = wanted.begin; begin < wanted.end;) {
    const int holder = static_cast<int>(begin / shard);
    const int64_t end = std::min(wanted.end, (holder + 1) * shard);
    builder->Add(unit.id, source.ranks[holder], to, {begin, end});
    begin = end;
  }
}

// Spreads reads over ranks that all hold the same: the least loaded one is next, the first of
// equals.
class Replicas {
 public:
  explicit Replicas(const Layout& source)
      : source_(source), holds_(source.ranks.begin(), source.ranks.end()) {
    for (int index = 0; index < source.size(); ++index) load_.push({0, index});
  }

  void Deliver(const Unit& unit, int to, Interval wanted, Builder* builder) {
    if (holds_.contains(to)) return builder->Add(unit.id, to, to, wanted);
    for (int64_t begin = wanted.begin; begin < wanted.end;) {
      const int64_t end = std::min(wanted.end, begin + builder->max_copy_elements());
      auto [elements, index] = load_.top();
      load_.pop();
      builder->Add(unit.id, source_.ranks[index], to, {begin, end});
      load_.push({elements + end - begin, index});
      begin = end;
    }
  }

 private:
  using Load = std::pair<int64_t, int>;  // elements read so far, group index

  const Layout& source_;
  const absl::flat_hash_set<int> holds_;
  std::priority_queue<Load, std::vector<Load>, std::greater<Load>> load_;
};

}  // namespace

bool operator==(const Copy& a, const Copy& b) {
  return a.unit == b.unit && a.from == b.from && a.to == b.to && a.interval == b.interval;
}

uint64_t MovePlan::Digest() const {
  std::vector<int64_t> words;
  words.reserve(copies.size() * 5);
  for (const Copy& copy : copies) {
    words.insert(words.end(),
                 {copy.unit, copy.from, copy.to, copy.interval.begin, copy.interval.end});
  }
  return XXH3_64bits(words.data(), words.size() * sizeof(int64_t));
}

MovePlan PlanMove(const ParamTable& table, const Layout& source, const Layout& destination,
                  int64_t max_copy_elements) {
  MovePlan plan;
  Builder builder(max_copy_elements, &plan);
  Replicas replicas(source);
  std::vector<std::pair<int, int>> order;  // global rank, group index
  order.reserve(destination.ranks.size());
  for (int index = 0; index < destination.size(); ++index) {
    order.emplace_back(destination.ranks[index], index);
  }
  std::sort(order.begin(), order.end());
  for (const Unit& unit : table.units()) {
    for (const auto& [to, index] : order) {
      const Interval wanted = destination.placement == Placement::kReplicate
                                  ? Interval{0, unit.numel}
                                  : ShardInterval(unit.numel, destination.size(), index);
      if (source.placement == Placement::kReplicate) {
        replicas.Deliver(unit, to, wanted, &builder);
      } else {
        FromShards(unit, source, to, wanted, &builder);
      }
    }
  }
  return plan;
}

}  // namespace regroup
