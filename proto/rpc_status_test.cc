#include "proto/rpc_status.h"

#include "gtest/gtest.h"

namespace regroup {
namespace {

TEST(RpcStatus, RoundTrip_KeepsCodeMessageAndDetail) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ERROR_REASON_RANK_LOST);
  detail.set_engine("actor");
  detail.add_ranks(2);
  const absl::Status sent = MakeError(absl::StatusCode::kUnavailable, "rank 2 is lost", detail);

  const absl::Status received = FromGrpc(ToGrpc(sent));

  EXPECT_EQ(received.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(received.message(), "rank 2 is lost");
  ASSERT_TRUE(DetailOf(received).has_value());
  EXPECT_EQ(DetailOf(received)->ranks(0), 2);
  EXPECT_EQ(DetailOf(received)->reason(), v1::ERROR_REASON_RANK_LOST);
}

TEST(RpcStatus, RoundTrip_WithoutDetail_HasNone) {
  const absl::Status received = FromGrpc(ToGrpc(absl::NotFoundError("x")));
  EXPECT_EQ(received, absl::NotFoundError("x"));
  EXPECT_FALSE(DetailOf(received).has_value());
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(RpcStatus, FromGrpc_ForeignDetails_AreDropped) {
  const grpc::Status foreign(grpc::StatusCode::INTERNAL, "x", "\xff\xff\xff");
  EXPECT_FALSE(DetailOf(FromGrpc(foreign)).has_value());
}

TEST(RpcStatus, ToGrpc_MessageTooLongForMetadata_IsCutBetweenCharacters) {
  const std::string fits(6000, 'x');
  EXPECT_EQ(ToGrpc(absl::NotFoundError(fits)).error_message(), fits);
  EXPECT_EQ(ToGrpc(absl::NotFoundError(fits + "y")).error_message(), fits + "...");
  std::string accents = "x";
  while (accents.size() < 100000) accents += "\xc3\xa9";
  const std::string cut = ToGrpc(absl::NotFoundError(accents)).error_message();
  EXPECT_EQ(cut, accents.substr(0, 1999) + "...");  // three bytes each on the wire
}

TEST(RpcStatus, NotAvailable_NamesWhat) {
  EXPECT_EQ(NotAvailable("--tp=2").message(), "not available in this version: --tp=2");
}

}  // namespace
}  // namespace regroup
