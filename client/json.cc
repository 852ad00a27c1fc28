#include "client/json.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"

namespace regroup {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// The prefix is what stands before UNSPECIFIED in the name of value 0: it is written once, in the
// .proto.
std::string EnumName(const EnumDescriptor* type, int number) {
  const EnumValueDescriptor* value = type->FindValueByNumber(number);
  if (value == nullptr) return std::to_string(number);  // a newer server
  const EnumValueDescriptor* zero = type->FindValueByNumber(0);
  absl::string_view prefix = zero == nullptr ? absl::string_view() : zero->name();
  if (!absl::ConsumeSuffix(&prefix, "UNSPECIFIED")) return value->name();
  if (number == 0) return "";
  absl::string_view name = value->name();
  absl::ConsumePrefix(&name, prefix);
  return std::string(name);
}

// Element `index` of a repeated field, or the single value if index < 0.
Json Value(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* reflection = message.GetReflection();
  const bool single = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return single ? reflection->GetInt32(message, field)
                    : reflection->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return single ? reflection->GetInt64(message, field)
                    : reflection->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return single ? reflection->GetUInt32(message, field)
                    : reflection->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return single ? reflection->GetUInt64(message, field)
                    : reflection->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(single ? reflection->GetDouble(message, field)
                           : reflection->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(single ? reflection->GetFloat(message, field)
                           : reflection->GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return single ? reflection->GetBool(message, field)
                    : reflection->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(field->enum_type(),
                      single ? reflection->GetEnumValue(message, field)
                             : reflection->GetRepeatedEnumValue(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return single ? reflection->GetString(message, field)
                    : reflection->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(single ? reflection->GetMessage(message, field)
                           : reflection->GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

}  // namespace

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0 && time.nanos() == 0) return "";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

Json ToJson(const Message& message) {
  const google::protobuf::Descriptor* type = message.GetDescriptor();
  if (type->full_name() == "google.protobuf.Duration") {
    const auto& duration = static_cast<const google::protobuf::Duration&>(message);
    return static_cast<double>(duration.seconds()) + duration.nanos() / 1e9;
  }
  if (type->full_name() == "google.protobuf.Timestamp") {
    return TimeText(static_cast<const google::protobuf::Timestamp&>(message));
  }
  Json object = Json::object();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (!field->is_repeated()) {
      object[field->json_name()] = Value(message, field, -1);
      continue;
    }
    Json array = Json::array();
    const int size = message.GetReflection()->FieldSize(message, field);
    for (int element = 0; element < size; ++element) {
      array.push_back(Value(message, field, element));
    }
    object[field->json_name()] = std::move(array);
  }
  return object;
}

std::string ToLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace regroup
