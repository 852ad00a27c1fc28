#include "engine/data/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "engine/group/comm_status.h"
#include "engine/model/test_models.h"

namespace regroup {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string U16(const std::vector<int>& tokens) {
  std::string bytes;
  for (const int token : tokens) {
    bytes += static_cast<char>(token & 255);
    bytes += static_cast<char>(token >> 8);
  }
  return bytes;
}

std::string U32(const std::vector<int64_t>& tokens) {
  std::string bytes;
  for (const int64_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(token >> shift & 255);
  }
  return bytes;
}

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    language_.is_language_model = true;
    language_.vocab_size = 300;
    language_.max_positions = 64;
    mlp_.in_features = 2;
    mlp_.out_features = 1;
  }

  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& name, const std::string& content,
                                                int64_t seq) {
    folder_.Write(name, content);
    return Dataset::Open(folder_.File(name), seq, language_);
  }
  absl::StatusOr<std::unique_ptr<Dataset>> OpenJson(const std::string& content) {
    folder_.Write("d.jsonl", content);
    return Dataset::Open(folder_.File("d.jsonl"), 0, mlp_);
  }
  void Expect(const absl::Status& status, absl::StatusCode code,
              const std::vector<std::string>& words) {
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& word : words) {
      EXPECT_TRUE(absl::StrContains(status.message(), word)) << word << " in " << status;
    }
  }

  TempFolder folder_;
  ModelLimits language_;
  ModelLimits mlp_;
};

std::vector<int64_t> Flat(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  const int64_t* data = whole.const_data_ptr<int64_t>();
  return {data, data + whole.numel()};
}

TEST_F(DatasetTest, Tokens_U16_RowsHaveStrideSeqAndNextTokenTargets) {
  const auto data = Open("d.u16.bin", U16({0, 1, 2, 3, 4, 5, 6, 299, 8, 9}), 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->rows(), 3);  // floor(9 / 3)
  const std::vector<int64_t> rows = {2, 0};
  const Batch batch = (*data)->Load(rows);
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(Flat(batch.inputs), (std::vector<int64_t>{6, 299, 8, 0, 1, 2}));
  EXPECT_EQ(Flat(batch.targets), (std::vector<int64_t>{299, 8, 9, 1, 2, 3}));
  EXPECT_EQ((*data)->CountTargets(rows), 6);
  EXPECT_TRUE((*data)->Check(0, 3).ok());
}

TEST_F(DatasetTest, Tokens_U32_AreLittleEndian) {
  language_.vocab_size = 1 << 24;
  const auto data = Open("d.u32.bin", U32({70000, 1, 0x123456, 3}), 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Flat((*data)->Load({0}).inputs), (std::vector<int64_t>{70000, 1, 0x123456}));
}

TEST_F(DatasetTest, Tokens_NumberOfRows_FollowsTheRule) {
  for (int tokens = 4; tokens < 20; ++tokens) {
    const auto data = Open("d.u16.bin", U16(std::vector<int>(tokens, 1)), 3);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ((*data)->rows(), (tokens - 1) / 3) << tokens;
    EXPECT_TRUE((*data)->Check(0, 1000).ok());
  }
}

TEST_F(DatasetTest, Load_NoRows_GivesTensorsOfZeroRows) {
  const Batch tokens = (*Open("d.u16.bin", U16({0, 1, 2, 3}), 3))->Load({});
  EXPECT_EQ(tokens.inputs.sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(tokens.targets.sizes(), (std::vector<int64_t>{0, 3}));
  const Batch numbers = (*OpenJson(R"({"x": [1, 2], "y": [3]})"))->Load({});
  EXPECT_EQ(numbers.inputs.sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(numbers.targets.sizes(), (std::vector<int64_t>{0, 1}));
}

TEST_F(DatasetTest, Check_TokenOutsideTheVocabulary_NamesFilePositionTokenAndSize) {
  const auto data = Open("d.u16.bin", U16({0, 1, 2, 3, 4, 5, 300, 7, 8, 9}), 3);
  ASSERT_TRUE(data.ok());
  EXPECT_TRUE((*data)->Check(0, 1).ok());
  for (const int64_t first : {0, 1, 2, 4, 5}) {  // row 1 ends with it, row 2 starts with it
    Expect((*data)->Check(first, 2), kInvalid,
           {"--data=", "d.u16.bin", "token 300 at position 6", "from 0 to 299", "300 tokens"});
  }
  EXPECT_TRUE((*data)->Check(3, 1).ok());  // row 0 again
  EXPECT_FALSE((*data)->Check(INT64_MAX - 5, INT64_MAX).ok());
}

TEST_F(DatasetTest, Check_LargeU32Token_IsRefused) {
  const auto data = Open("d.u32.bin", U32({0, 0xffffffff, 2, 3}), 3);
  Expect((*data)->Check(0, 1), kInvalid, {"token 4294967295 at position 1"});
}

TEST_F(DatasetTest, Open_SeqOutOfRange_NamesFlagValueAndBounds) {
  for (const int64_t seq : {int64_t{0}, int64_t{-1}, int64_t{65}, INT64_MAX, INT64_MIN}) {
    Expect(Open("d.u16.bin", U16(std::vector<int>(100, 1)), seq).status(), kInvalid,
           {seq == 0 ? "--seq is missing" : "--seq=" + std::to_string(seq), "from 1 to 64"});
  }
  EXPECT_TRUE(Open("d.u16.bin", U16(std::vector<int>(100, 1)), 64).ok());
}

TEST_F(DatasetTest, Open_FileTooShortOrOfOddLength_IsRefusedWithTheNumbers) {
  Expect(Open("d.u16.bin", U16({1, 2, 3}), 3).status(), kInvalid,
         {"--data=", "has 3 tokens", "--seq=3 needs 4"});
  Expect(Open("d.u16.bin", "", 3).status(), kInvalid, {"has 0 tokens"});
  Expect(Open("d.u16.bin", "12345", 1).status(), kInvalid, {"has 5 bytes", "multiple of 2"});
  Expect(Open("d.u32.bin", "123456", 1).status(), kInvalid, {"has 6 bytes", "multiple of 4"});
}

TEST_F(DatasetTest, Open_OtherEnding_NamesWhatIsAllowed) {
  Expect(Open("d.bin", "1234", 1).status(), kInvalid, {"d.bin", "*.u16.bin, *.u32.bin or *.jsonl"});
  Expect(Open("d.txt", "1234", 1).status(), kInvalid, {"d.txt"});
  folder_.Write("d.u16.bin", "1234");
  Expect(Dataset::Open(folder_.File("d.u16.bin"), 0, mlp_).status(), kInvalid, {"*.jsonl"});
  Expect(Dataset::Open("", 0, mlp_).status(), kInvalid, {"--data: a path of 0 bytes"});
}

TEST_F(DatasetTest, Open_MissingOrNotARegularFile_IsRefusedWithoutWaiting) {
  Expect(Dataset::Open(folder_.File("none.u16.bin"), 1, language_).status(),
         absl::StatusCode::kNotFound, {"--data=", "none.u16.bin"});
  const std::string pipe = folder_.File("pipe.u16.bin"), json_pipe = folder_.File("pipe.jsonl"),
                    folder = folder_.File("folder.u16.bin");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(mkfifo(json_pipe.c_str(), 0600), 0);
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  Expect(Dataset::Open(pipe, 1, language_).status(), kInvalid, {"--data=", "regular file"});
  Expect(Dataset::Open(json_pipe, 0, mlp_).status(), kInvalid, {"--data=", "regular file"});
  Expect(Dataset::Open(folder, 1, language_).status(), kInvalid, {"--data=", "regular file"});
}

TEST_F(DatasetTest, CheckAndLoad_AfterTruncation_ReportDataLoss) {
  const auto data = Open("d.u16.bin", U16({0, 1, 2, 3}), 3);
  ASSERT_TRUE(data.ok());
  ASSERT_EQ(truncate(folder_.File("d.u16.bin").c_str(), 0), 0);
  Expect((*data)->Check(0, 1), absl::StatusCode::kDataLoss, {"d.u16.bin"});
  EXPECT_THROW((*data)->Load({0}), StatusException);
}

TEST_F(DatasetTest, Digest_OtherSizeBeginningOrEnd_Differs) {
  std::string content(300000, 'a');
  const auto digest = [&] { return (*Open("d.u16.bin", content, 3))->digest(); };
  const std::string first = digest();
  EXPECT_EQ(digest(), first);
  content.back() = 'b';
  EXPECT_NE(digest(), first);
  content.back() = 'a';
  content.front() = 'b';
  EXPECT_NE(digest(), first);
  content.front() = 'a';
  content += "aa";
  EXPECT_NE(digest(), first);
  EXPECT_NE((*OpenJson(R"({"x": [1, 2], "y": [3]})"))->digest(), "");
}

// Of a .jsonl file every byte decides, not the ends alone.
TEST_F(DatasetTest, Digest_JsonRowInTheMiddle_Differs) {
  constexpr int kRows = 45000;  // more than is read at once
  const std::string row = "{\"x\": [1, 2], \"y\": [3]}\n";
  std::string content;
  for (int i = 0; i < kRows; ++i) content += row;
  const auto digest = [&] { return (*OpenJson(content))->digest(); };
  const std::string first = digest();
  for (const int changed : {kRows / 2, kRows / 13 * 12}) {
    const size_t at = changed * row.size() + row.find('3');
    content[at] = '4';
    EXPECT_NE(digest(), first) << changed;
    content[at] = '3';
  }
  EXPECT_EQ(digest(), first);
}

TEST_F(DatasetTest, Json_Rows_AreRead) {
  const auto data = OpenJson("{\"x\": [1, -2.5], \"y\": [3e2]}\r\n{\"y\": [0], \"x\": [0.1, 4]}\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->rows(), 2);
  EXPECT_TRUE((*data)->Check(0, 2).ok());
  const std::vector<int64_t> rows = {1, 0, 1};
  const Batch batch = (*data)->Load(rows);
  EXPECT_EQ(batch.inputs[0][0].item<float>(), 0.1F);
  EXPECT_EQ(batch.inputs[1][1].item<float>(), -2.5F);
  EXPECT_EQ(batch.targets[1][0].item<float>(), 300.F);
  EXPECT_EQ(batch.targets.sizes(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ((*data)->CountTargets(rows), 3);
}

TEST_F(DatasetTest, Json_LineThatIsNotARow_NamesTheLineAndWhatIsAllowed) {
  const std::string good = "{\"x\": [1, 2], \"y\": [3]}\n";
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::string>>{
           {"{\"x\": [1], \"y\": [3]}", "x = [1]: must be a list of 2 numbers"},
           {"{\"x\": [1, 2], \"y\": 3}", "y = 3: must be a list of 1 numbers"},
           {"{\"x\": [1, 2]}", "y is missing"},
           {"{\"x\": [1, \"2\"], \"y\": [3]}", "x holds \"2\""},
           {"{\"x\": [1, null], \"y\": [3]}", "x holds null"},
           {"{\"x\": [1, 1e39], \"y\": [3]}", "x holds 1e+39"},
           {"{\"x\": [1, 1e400], \"y\": [3]}", "not valid JSON"},
           {"{\"x\": [1, NaN], \"y\": [3]}", "not valid JSON"},
           {"{\"x\": [1, 2], \"x\": [1, 2], \"y\": [3]}", "duplicate key \"x\""},
           {"{\"x\": [1, 2], \"y\": [3], \"z\": 1}", "unknown field \"z\""},
           {"[1, 2]", "must be an object"},
           {"", "not valid JSON"},
           {good.substr(0, 10), "not valid JSON"},
       }) {
    Expect(OpenJson(good + line + "\n").status(), kInvalid,
           {"--data=", "d.jsonl: line 2: ", words});
  }
  Expect(OpenJson("").status(), kInvalid, {"has 0 bytes"});
}

TEST_F(DatasetTest, Json_LineLongerThanItsNumbersNeed_IsRefusedBeforeItIsParsed) {
  const std::string row = R"({"x": [1, 2], "y": [3]})";  // at most 64 + 3 * 40 bytes
  EXPECT_TRUE(OpenJson(row + std::string(184 - row.size(), ' ') + "\n" + row).ok());
  Expect(OpenJson(row + "\n" + row + std::string(185 - row.size(), ' ')).status(), kInvalid,
         {"line 2: has more than 184 bytes", "2 + 1 numbers"});
  Expect(OpenJson(std::string(3 << 20, '[')).status(), kInvalid, {"line 1: has more than 184"});
}

TEST_F(DatasetTest, Json_ManyLines_AreReadAcrossPieces) {
  std::string content;
  for (int i = 0; i < 100000; ++i) {
    content += "{\"x\": [" + std::to_string(i) + ", 2], \"y\": [3]}\n";
  }
  ASSERT_GT(content.size(), size_t{2} << 20);
  const auto data = OpenJson(content);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->rows(), 100000);
  const std::vector<int64_t> rows = {0, 43689, 99999};
  const Batch batch = (*data)->Load(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(batch.inputs[i][0].item<float>(), static_cast<float>(rows[i]));
  }
}

TEST_F(DatasetTest, Json_WithSeq_IsRefused) {
  folder_.Write("d.jsonl", R"({"x": [1, 2], "y": [3]})");
  Expect(Dataset::Open(folder_.File("d.jsonl"), 8, mlp_).status(), kInvalid, {"--seq=8"});
}

// Without a mask all tokens but the first are targets; padding is none.
TEST_F(DatasetTest, Masked_Rows_ArePaddedOnTheRightToTheLongestAskedFor) {
  const auto data = Open("d.jsonl",
                         "{\"tokens\": [1, 2, 3, 4, 5]}\n"
                         "{\"mask\": [1, 0, 1], \"tokens\": [7, 0, 299]}\r\n"
                         "{\"tokens\": [9], \"mask\": [1]}\n"
                         "{\"tokens\": [5, 6, 7, 8], \"mask\": [false, true, false, true]}",
                         4);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->rows(), 4);
  EXPECT_TRUE((*data)->Check(0, 4).ok());
  Batch batch = (*data)->Load({1, 0});
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(Flat(batch.inputs), (std::vector<int64_t>{7, 0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(Flat(batch.targets), (std::vector<int64_t>{-100, 299, -100, -100, 2, 3, 4, 5}));
  batch = (*data)->Load({3, 2, 1});
  EXPECT_EQ(Flat(batch.inputs), (std::vector<int64_t>{5, 6, 7, 0, 0, 0, 7, 0, 0}));
  EXPECT_EQ(Flat(batch.targets),
            (std::vector<int64_t>{6, -100, 8, -100, -100, -100, -100, 299, -100}));
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{2}, {}}) {
    EXPECT_EQ((*data)->Load(rows).inputs.sizes(),
              (std::vector<int64_t>{static_cast<int64_t>(rows.size()), 1}));
    EXPECT_EQ((*data)->CountTargets(rows), 0);
  }
  EXPECT_EQ((*data)->CountTargets({0, 1, 2, 3, 0}), 4 + 1 + 0 + 2 + 4);
}

TEST_F(DatasetTest, Masked_LineThatIsNotARow_NamesTheLineAndWhatIsAllowed) {
  const std::string good = "{\"tokens\": [1, 2, 3]}\n";
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::string>>{
           {"{\"tokens\": [1, 2, 3, 4, 5]}",
            "tokens has 5 tokens: must be a list of 1 to 4 tokens (one more than --seq=3)"},
           {"{\"tokens\": []}", "tokens has 0 tokens: must be a list of 1 to 4"},
           {"{\"tokens\": 7}", "tokens = 7: must be a list of 1 to 4"},
           {"{\"mask\": [1]}", "tokens is missing; must be a list of 1 to 4"},
           {"{\"tokens\": [1, 300]}", "tokens holds 300: must be an integer from 0 to 299"},
           {"{\"tokens\": [1, -1]}", "tokens holds -1: must be"},
           {"{\"tokens\": [1, 1.0]}", "tokens holds 1.0: must be"},
           {"{\"tokens\": [1, \"2\"]}", "tokens holds \"2\": must be"},
           {"{\"tokens\": [18446744073709551615]}", "tokens holds 18446744073709551615"},
           {"{\"tokens\": [1, 2], \"mask\": [1]}",
            "mask = [1]: must be a list of 2 values, one for each token"},
           {"{\"tokens\": [1, 2], \"mask\": true}", "mask = true: must be a list of 2 values"},
           {"{\"tokens\": [1, 2], \"mask\": [1, 2]}", "mask holds 2: must be 0, 1, false or true"},
           {"{\"tokens\": [1, 2], \"mask\": [1, null]}", "mask holds null"},
           {"{\"tokens\": [1, 2], \"labels\": [1, 2]}",
            "unknown field \"labels\"; allowed: tokens, mask"},
           {"{\"x\": [1, 2], \"y\": [3]}", "unknown field \"x\"; allowed: tokens, mask"},
           {"[1, 2]", "[1,2]: must be an object {\"tokens\": [...], \"mask\": [...]}"},
           {"", "not valid JSON"},
       }) {
    Expect(Open("d.jsonl", good + line + "\n", 3).status(), kInvalid,
           {"--data=", "d.jsonl: line 2: ", words});
  }
  Expect(Open("d.jsonl", "", 3).status(), kInvalid, {"--data=", "has 0 bytes"});
  Expect(Open("d.jsonl", good + std::string(1000, '['), 3).status(), kInvalid,
         {"line 2: has more than 320 bytes", "4 tokens (one more than --seq=3)"});
  Expect(Open("d.jsonl", good, 0).status(), kInvalid, {"--seq is missing", "from 1 to 64"});
  Expect(Open("d.jsonl", good, 65).status(), kInvalid, {"--seq=65", "from 1 to 64"});
}

TEST_F(DatasetTest, BatchRows_AnyPosition_FollowsTheRule) {
  EXPECT_EQ(BatchRows(0, 4, 10), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(BatchRows(2, 4, 10), (std::vector<int64_t>{8, 9, 0, 1}));
  EXPECT_EQ(BatchRows(1, 3, 2), (std::vector<int64_t>{1, 0, 1}));
  // Beyond 64 bits: 2^62 * 6 = 2^63 * 3.
  EXPECT_EQ(BatchRows(int64_t{1} << 62, 6, 5)[0], 4);  // 2^63 = 3, so 3 * 3 = 4 (mod 5)
}

TEST_F(DatasetTest, SplitRows_AnyNumberOfParts_GivesEarlierOnesTheExtraRow) {
  const std::vector<int64_t> rows = BatchRows(0, 8, 100);
  EXPECT_EQ(SplitRows(rows, 3, 0), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(SplitRows(rows, 3, 1), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(SplitRows(rows, 3, 2), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(SplitRows(rows, 1, 0), rows);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(SplitRows(rows, 8, i), (std::vector<int64_t>{i}));
}

TEST_F(DatasetTest, DealRows_AnyNumberOfMembers_CoversRowsOnceInOrder) {
  for (int count = 0; count < 12; ++count) {
    const std::vector<int64_t> rows = BatchRows(0, count, 100);
    for (int members = 1; members < 7; ++members) {
      std::vector<int64_t> dealt;
      for (int index = 0; index < members; ++index) {
        const absl::Span<const int64_t> mine = DealRows(rows, members, index);
        EXPECT_EQ(static_cast<int>(mine.size()),
                  (index + 1) * count / members - index * count / members);
        dealt.insert(dealt.end(), mine.begin(), mine.end());
      }
      EXPECT_EQ(dealt, rows);
    }
  }
}

}  // namespace
}  // namespace regroup
