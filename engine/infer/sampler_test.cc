#include "engine/infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

namespace regroup {
namespace {

// Probabilities 0.5, 0.25, 0.125, 0.125 and nothing else.
std::vector<float> Halves() {
  std::vector<float> logits(16, -1e9F);
  logits[0] = static_cast<float>(std::log(0.5));
  logits[1] = static_cast<float>(std::log(0.25));
  logits[2] = logits[3] = static_cast<float>(std::log(0.125));
  return logits;
}

SamplingOptions Options(double temperature, double top_p = 1, int64_t top_k = 0) {
  SamplingOptions options;
  options.temperature = temperature;
  options.top_p = top_p;
  options.top_k = top_k;
  return options;
}

std::map<int64_t, int> Draw(const std::vector<float>& logits, const SamplingOptions& options,
                            int draws) {
  std::map<int64_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    ++counts[SampleToken(logits, options, UniformDraw(7, 3, i)).value().token];
  }
  return counts;
}

std::set<int64_t> Tokens(const std::map<int64_t, int>& counts) {
  std::set<int64_t> tokens;
  for (const auto& entry : counts) tokens.insert(entry.first);
  return tokens;
}

using Set = std::set<int64_t>;

TEST(SamplerTest, TopP_EdgesOfTheNucleus_KeepTheShortestRunThatReachesIt) {
  const std::vector<float> logits = Halves();
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 0.74), 5000)), (Set{0, 1}));
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 0.75), 5000)), (Set{0, 1}));
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 0.76), 5000)), (Set{0, 1, 2}));
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 0.5), 5000)), Set{0});
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 0.51), 5000)), (Set{0, 1}));
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 0), 5000)), Set{0});
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 1e-9), 5000)), Set{0});
}

TEST(SamplerTest, TopP_One_DrawsEveryTokenAtItsProbability) {
  const std::map<int64_t, int> counts = Draw(Halves(), Options(1), 5000);
  ASSERT_EQ(Tokens(counts), (Set{0, 1, 2, 3}));
  // Five standard deviations.
  EXPECT_NEAR(counts.at(0), 2500, 180);
  EXPECT_NEAR(counts.at(1), 1250, 155);
  EXPECT_NEAR(counts.at(2), 625, 120);
  EXPECT_NEAR(counts.at(3), 625, 120);
}

TEST(SamplerTest, Candidates_AfterTopP_AreRenormalised) {
  const auto kept = Candidates(Halves(), Options(1, 0.75)).value();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_NEAR(kept[0].probability, 2.0 / 3, 1e-7);
  EXPECT_NEAR(kept[1].probability, 1.0 / 3, 1e-7);
}

TEST(SamplerTest, Candidates_TopKThenTopP_WorkOnWhatTopKLeft) {
  // Of {0.5, 0.25} renormalised the first has 0.667: 0.6 keeps one, 0.7 both.
  EXPECT_EQ(Candidates(Halves(), Options(1, 0.6, 2)).value().size(), 1u);
  EXPECT_EQ(Candidates(Halves(), Options(1, 0.7, 2)).value().size(), 2u);
}

TEST(SamplerTest, TopK_AroundTheVocabulary_LimitsOrIsOff) {
  std::vector<float> logits(257);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 257) / 100;
  const int64_t best = SampleToken(logits, Options(0), 0).value().token;
  EXPECT_EQ(Candidates(logits, Options(1, 1, 0)).value().size(), 257u);
  EXPECT_EQ(Candidates(logits, Options(1, 1, 256)).value().size(), 256u);
  EXPECT_EQ(Candidates(logits, Options(1, 1, 257)).value().size(), 257u);
  EXPECT_EQ(Candidates(logits, Options(1, 1, 258)).value().size(), 257u);
  EXPECT_EQ(Candidates(logits, Options(1, 1, 100000)).value().size(), 257u);
  EXPECT_EQ(Tokens(Draw(logits, Options(1, 1, 1), 200)), Set{best});
  // The one that 256 leaves out is the smallest.
  const std::vector<Candidate> kept = Candidates(logits, Options(1, 1, 256)).value();
  for (const Candidate& candidate : kept) {
    EXPECT_NE(candidate.token, 0);
  }
  for (const double uniform : {0.0, 0.25, 1 - 0x1p-53}) {
    EXPECT_EQ(SampleToken(logits, Options(1, 1, 257), uniform)->token,
              SampleToken(logits, Options(1, 1, 0), uniform)->token);
  }
}

TEST(SamplerTest, Greedy_EqualLogits_TakeTheLowestToken) {
  EXPECT_EQ(SampleToken({1.F, 3.F, 3.F, 2.F}, Options(0), 0.9)->token, 1);
  EXPECT_EQ(SampleToken({5.F, 5.F, 5.F}, Options(0), 0.9)->token, 0);
  EXPECT_EQ(Candidates({1.F, 3.F, 3.F, 2.F}, Options(1, 1, 1)).value()[0].token, 1);
}

TEST(SamplerTest, Logprob_WhateverTheTruncation_IsTheRawLogSoftmax) {
  const std::vector<float> logits = {2.F, -1.F, 0.5F, 1.F};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (const SamplingOptions& options :
       {Options(0), Options(1), Options(0.3), Options(5, 0.8, 2), Options(1, 0)}) {
    for (const double uniform : {0.0, 0.5, 0.999}) {
      const Sampled sampled = SampleToken(logits, options, uniform).value();
      EXPECT_NEAR(sampled.logprob, logits[sampled.token] - std::log(sum), 1e-6);
    }
  }
}

TEST(SamplerTest, Temperature_LowAndHigh_SharpenAndFlatten) {
  EXPECT_EQ(Tokens(Draw(Halves(), Options(0.01), 1000)), Set{0});
  EXPECT_EQ(Tokens(Draw(Halves(), Options(1e-300), 10)), Set{0});
  EXPECT_NEAR(Candidates(Halves(), Options(0.5)).value()[0].probability, 0.25 / 0.34375, 1e-6);
  EXPECT_NEAR(Candidates({0.F, 9.F}, Options(1e300)).value()[0].probability, 0.5, 1e-9);
}

TEST(SamplerTest, SampleToken_UniformAtItsEnds_StaysAmongThePossible) {
  EXPECT_EQ(SampleToken(Halves(), Options(1), 0)->token, 0);
  EXPECT_EQ(SampleToken(Halves(), Options(1), 1 - 0x1p-53)->token, 3);
  const float none = -INFINITY;
  EXPECT_EQ(SampleToken({none, 1.F, none}, Options(1), 0)->token, 1);
  EXPECT_EQ(SampleToken({none, 1.F, none}, Options(1), 1 - 0x1p-53)->token, 1);
}

TEST(SamplerTest, SampleToken_NonFiniteLogits_AreRefused) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const double temperature : {0.0, 1.0}) {
      const absl::Status status = SampleToken({bad, bad, bad}, Options(temperature), 0.5).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << bad;
    }
  }
  EXPECT_FALSE(SampleToken({1.F, NAN}, Options(0), 0).ok());
  EXPECT_FALSE(SampleToken({NAN, 1.F}, Options(1), 0).ok());
  EXPECT_FALSE(SampleToken({1.F, INFINITY}, Options(1), 0).ok());
}

TEST(SamplerTest, UniformDraw_KeyedByAllThree_IsRepeatableAndUniform) {
  EXPECT_EQ(UniformDraw(1, 2, 3), UniformDraw(1, 2, 3));
  std::set<double> seen;
  double sum = 0;
  int draws = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (int64_t row = 0; row < 50; ++row) {
      for (int64_t index = 0; index < 50; ++index) {
        const double value = UniformDraw(seed, row, index);
        ASSERT_GE(value, 0);
        ASSERT_LT(value, 1);
        seen.insert(value);
        sum += value;
        ++draws;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(draws));
  EXPECT_NEAR(sum / draws, 0.5, 5 * std::sqrt(1.0 / 12 / draws));
}

}  // namespace
}  // namespace regroup
