#include "engine/model/safetensors.h"

#include <endian.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace regroup {
namespace {

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    std::string path = testing::TempDir() + "/safetensors-XXXXXX";
    folder_ = mkdtemp(path.data());
    path_ = folder_ + "/model.safetensors";
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenBytes(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return SafetensorsFile::Open(path_);
  }

  // A file of `header` and `data_size` bytes of data.
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenHeader(const std::string& header,
                                                              size_t data_size) {
    return OpenBytes(Length(header.size()) + header + std::string(data_size, 'd'));
  }

  static std::string Length(uint64_t length) {
    length = htole64(length);
    return {reinterpret_cast<const char*>(&length), sizeof(length)};
  }

  void ExpectRefused(const absl::Status& status, absl::string_view words) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(words), absl::string_view::npos) << status;
    EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  }

  std::string folder_;
  std::string path_;
};

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  int64_t begin, int64_t end) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":[", begin, ",", end, "]}");
}

TEST_F(SafetensorsTest, Open_SoundFile_GivesTensorsByOffset) {
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + Entry("b", "BF16", "[3]", 24, 30) + "," +
      Entry("a", "F32", "[2,3]", 0, 24) + "," + Entry("empty", "F32", "[0,5]", 24, 24) + "," +
      Entry("scalar", "I64", "[]", 30, 38) + "}   ";
  const auto file = OpenHeader(header, 38);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 4u);
  EXPECT_EQ((*file)->tensors()[0].name, "a");
  EXPECT_EQ((*file)->tensors()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*file)->tensors()[1].name, "empty");
  EXPECT_EQ((*file)->tensors()[2].dtype, "BF16");
  EXPECT_EQ((*file)->tensors()[3].end - (*file)->tensors()[3].begin, 8);
}

TEST_F(SafetensorsTest, Open_LyingHeaderLength_IsRefusedAtOnceWithoutAllocating) {
  rusage before = {};
  getrusage(RUSAGE_SELF, &before);
  const absl::Time start = absl::Now();
  const std::string body = "{}" + std::string(40, ' ');
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{50}, uint64_t{0},
                                uint64_t{1}, uint64_t{43}, uint64_t{1} << 40}) {
    ExpectRefused(OpenBytes(Length(length) + body).status(), "header length = ");
  }
  ExpectRefused(OpenBytes(Length(7) + body).status(), "35 trailing bytes");
  ExpectRefused(OpenBytes("abc").status(), "has 3 bytes");
  ExpectRefused(OpenBytes("").status(), "has 0 bytes");
  rusage after = {};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);  // KiB
}

TEST_F(SafetensorsTest, Open_HeaderAboveTheLimit_IsRefusedNamingIt) {
  // The file is as long as it says, with a hole where the header would be.
  OpenBytes(Length(126'000'000)).IgnoreError();
  ASSERT_EQ(truncate(path_.c_str(), 126'000'008), 0);
  ExpectRefused(SafetensorsFile::Open(path_).status(), "must be from 2 to 100000000 bytes");
}

TEST_F(SafetensorsTest, Open_AliasedOrOverlappingTensors_AreRefused) {
  ExpectRefused(OpenHeader("{" + Entry("k_proj", "F32", "[4]", 0, 16) + "," +
                               Entry("v_proj", "F32", "[4]", 0, 16) + "}",
                           16)
                    .status(),
                "overlaps");
  ExpectRefused(OpenHeader("{" + Entry("k_proj", "F32", "[4]", 0, 16) + "," +
                               Entry("v_proj", "F32", "[4]", 8, 24) + "}",
                           24)
                    .status(),
                "overlaps");
}

TEST_F(SafetensorsTest, Open_HoleOrTrailingBytesOrMissingData_AreRefused) {
  const std::string a = Entry("a", "F32", "[4]", 0, 16);
  ExpectRefused(OpenHeader("{" + a + "," + Entry("b", "F32", "[4]", 20, 36) + "}", 36).status(),
                "hole");
  ExpectRefused(OpenHeader("{" + Entry("b", "F32", "[4]", 4, 20) + "}", 20).status(), "hole");
  ExpectRefused(OpenHeader("{" + a + "}", 17).status(), "1 trailing bytes");
  ExpectRefused(OpenHeader("{}", 1).status(), "1 trailing bytes");
  ExpectRefused(OpenHeader("{" + a + "}", 15).status(), "lie within the 15 bytes");
}

TEST_F(SafetensorsTest, Open_DuplicateName_IsRefusedAsDuplicate) {
  const std::string twice =
      "{" + Entry("a", "F32", "[4]", 0, 16) + "," + Entry("a", "F32", "[4]", 16, 32) + "}";
  ExpectRefused(OpenHeader(twice, 32).status(), "duplicate tensor \"a\"");
  ExpectRefused(
      OpenHeader(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)
          .status(),
      "duplicate key dtype");
  ExpectRefused(OpenHeader(R"({"__metadata__":{},"__metadata__":{}})", 0).status(),
                "duplicate \"__metadata__\"");
}

TEST_F(SafetensorsTest, Open_BytesThatAreNotDTypeTimesShape_AreRefused) {
  ExpectRefused(OpenHeader("{" + Entry("a", "F32", "[4]", 0, 15) + "}", 15).status(), "need 16");
  ExpectRefused(OpenHeader("{" + Entry("a", "BF16", "[4]", 0, 16) + "}", 16).status(), "need 8");
  ExpectRefused(OpenHeader("{" + Entry("a", "F32", "[4]", 16, 0) + "}", 16).status(), "must rise");
  const std::string huge = "[4294967296,4294967296,4294967296]";
  ExpectRefused(OpenHeader("{" + Entry("a", "F32", huge, 0, 0) + "}", 0).status(), "too large");
  // 2^62 elements of 4 bytes are 2^64 bytes, which is 0 in 64 bits.
  ExpectRefused(
      OpenHeader("{" + Entry("a", "F32", "[4611686018427387904]", 0, 0) + "}", 0).status(),
      "too large");
}

TEST_F(SafetensorsTest, Open_UnknownDType_ReturnsUnimplementedNamingIt) {
  const absl::Status status = OpenHeader("{" + Entry("a", "F4", "[4]", 0, 2) + "}", 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("\"F4\""), absl::string_view::npos) << status;
}

TEST_F(SafetensorsTest, Open_HeaderOfAnotherForm_IsRefused) {
  for (const std::string header :
       {R"([])",
        R"( {})",
        R"({"a":1})",
        R"({"a":null})",
        R"({"a":{}})",
        R"({"a":[]})",
        R"({"a":{"dtype":"F32","shape":[1]}})",
        R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{}}})",
        R"({"__metadata__":{"a":1}})",
        R"({"__metadata__":{"a":{}}})",
        R"({"a")",
        R"({}x)"}) {
    EXPECT_EQ(OpenHeader(header, 4).status().code(), absl::StatusCode::kInvalidArgument) << header;
  }
}

TEST_F(SafetensorsTest, Open_CutAnywhere_IsRefused) {
  const std::string header = "{" + Entry("a", "F32", "[4]", 0, 16) + "}";
  const std::string bytes = Length(header.size()) + header + std::string(16, 'd');
  ASSERT_TRUE(OpenBytes(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(OpenBytes(bytes.substr(0, size)).ok()) << size;
  }
}

TEST_F(SafetensorsTest, MakeHeader_OwnHeader_IsReadBackAndAligned) {
  std::vector<TensorEntry> entries(2);
  entries[0] = {"quote\"and\\", "F32", {2, 3}, 0, 24};
  entries[1] = {"b", "BF16", {}, 24, 26};
  const auto header = MakeSafetensorsHeader(entries);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->size() % 8, 0u);
  const auto file = OpenBytes(*header + std::string(26, 'd'));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  EXPECT_EQ((*file)->tensors()[0].name, entries[0].name);
  EXPECT_EQ((*file)->tensors()[1].shape, entries[1].shape);
}

TEST_F(SafetensorsTest, MakeHeader_LongerThanAReaderTakes_IsRefused) {
  std::vector<TensorEntry> entries(1);
  entries[0].name = std::string(kMaxSafetensorsHeader, 'n');
  EXPECT_EQ(MakeSafetensorsHeader(entries).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace regroup
