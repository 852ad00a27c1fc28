// Messages as the JSON that scripts read.
#ifndef CLIENT_JSON_H_
#define CLIENT_JSON_H_

#include <string>

#include "google/protobuf/message.h"
#include "google/protobuf/timestamp.pb.h"
#include "nlohmann/json.hpp"

namespace regroup {

// Keeps the order of the fields.
using Json = nlohmann::ordered_json;

// Every field is present, in the order of its message, named in lowerCamelCase: numbers (64-bit
// integers too; null for a double that is not finite), strings, booleans, arrays for repeated
// fields, objects for sub-messages, set or not. An enum value is its name without the prefix of its
// type, UNSPECIFIED is "". A google.protobuf.Duration is its seconds, a Timestamp its TimeText.
Json ToJson(const google::protobuf::Message& message);

// "2026-01-31T12:00:00Z", "" if it is not set.
std::string TimeText(const google::protobuf::Timestamp& time);

// `json` on one line, without the line's end. Text that is not UTF-8 is replaced, never an
// exception.
std::string ToLine(const Json& json);

}  // namespace regroup

#endif  // CLIENT_JSON_H_
