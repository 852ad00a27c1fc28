// Two network namespaces that stand for two hosts, joined by one cable.
#ifndef TESTS_SYSTEM_NAMESPACES_H_
#define TESTS_SYSTEM_NAMESPACES_H_

#include <memory>
#include <string>
#include <vector>

namespace regroup::harness {

// Gone, with what was configured in it, when this object is. Processes in it should end before.
class TwoHosts {
 public:
  // nullptr, and *why_not says so, where they cannot be made (it takes root and `ip`).
  // `hosts_files`, if given, are what /etc/hosts holds on each.
  static std::unique_ptr<TwoHosts> Make(const std::vector<std::string>& hosts_files,
                                        std::string* why_not);
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  static constexpr const char* kAddress[] = {"10.90.0.1", "10.90.0.2"};
  static constexpr const char* kAddress6[] = {"fd90::1", "fd90::2"};

  // What starts a command there: goes before its argv.
  std::vector<std::string> In(int host) const;

  // Pulls the cable, or puts it back: what is sent in between is lost without a word.
  void SetCable(bool connected) const;

 private:
  TwoHosts() = default;

  std::string names_[2];
};

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_NAMESPACES_H_
