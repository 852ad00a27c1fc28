// regroupctl and the examples reach the cluster through client/client.h and nothing else: no gRPC,
// no stub, no header inside the library. Read from the sources, since a transitive header would
// compile.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace regroup {
namespace {

// The library itself; tests may look into it.
const std::set<std::string> kLibrary = {
    "client.cc",        "client_options.cc", "client_util.cc", "connection.cc",
    "connection.h",     "stream.cc",         "stream.h",       "client.h",
    "client_options.h", "fake_control.h",    "fake_clock.h",   "client_test_util.h"};

// Of the library, and of gRPC.
const std::vector<std::string> kForbidden = {"\"grpc/",
                                             "\"grpcpp/",
                                             "<grpc",
                                             ".grpc.pb.h",
                                             "\"proto/rpc_status.h\"",
                                             "\"client/client_options.h\"",
                                             "\"client/connection.h\"",
                                             "\"client/stream.h\""};

bool EndsWith(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() &&
         text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

std::vector<std::string> Lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Layers, RegroupctlAndExamples_IncludeNothingOfTheLibraryButItsHeader) {
  int files = 0;
  int users = 0;
  for (const char* folder : {"client", "examples"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      const bool source = EndsWith(name, ".cc") || EndsWith(name, ".h");
      if (!source || kLibrary.count(name) > 0 || EndsWith(name, "_test.cc")) continue;
      ++files;
      for (const std::string& line : Lines(entry.path())) {
        if (line.rfind("#include", 0) != 0) continue;
        users += line == "#include \"client/client.h\"" ? 1 : 0;
        for (const std::string& forbidden : kForbidden) {
          EXPECT_EQ(line.find(forbidden), std::string::npos) << entry.path() << ": " << line;
        }
      }
    }
  }
  EXPECT_GE(files, 40) << "the sources are not there";
  EXPECT_GE(users, 2);
}

TEST(Layers, Controller_HasFewerThan100Lines) {
  const size_t lines = Lines("examples/controller.cc").size();
  EXPECT_GT(lines, 0);
  EXPECT_LT(lines, 100);
}

}  // namespace
}  // namespace regroup
