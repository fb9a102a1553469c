// Every error of the header-only edition, before which nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "embedded/support.h"

namespace fovea::test {
namespace {

using embedded::Ring;

struct Sound {
  std::vector<float> q = std::vector<float>(2 * 4 * 5 * 6), k = std::vector<float>(2 * 2 * 9 * 6),
                     v = std::vector<float>(2 * 2 * 9 * 7);
  std::vector<float> out = std::vector<float>(2 * 4 * 5 * 7, 77.0f),
                     lse = std::vector<float>(2 * 4 * 5, 77.0f);
  std::vector<float> bias = std::vector<float>(9);
  embedded::Problem p;
  std::vector<int32_t> lengths = {5, 5}, kv_lengths = {9, 9};
  std::vector<int64_t> offsets = {4, 4};
  std::vector<Ring> rings = {{9, 12}, {9, 2}};

  Sound() {
    p.B = 2, p.Hq = 4, p.Hkv = 2, p.Tq = 5, p.Tk = 9, p.dk = 6, p.dv = 7;
    p.q = embedded::Rows(static_cast<const float*>(q.data()), 5, 6, 4);
    p.k = embedded::Rows(static_cast<const float*>(k.data()), 9, 6, 2);
    p.v = embedded::Rows(static_cast<const float*>(v.data()), 9, 7, 2);
    p.out = embedded::Rows(out.data(), 5, 7, 4);
    p.lse = embedded::Rows(lse.data(), 5, 1, 4);
    p.bias.data = bias.data();
    p.bias.stride[3] = 4;
    p.causal = embedded::Causal::kBottomRight;
    p.q_lengths = lengths.data();
    p.kv_lengths = kv_lengths.data();
  }
  bool Untouched() const {
    const auto same = [](float x) { return x == 77.0f; };
    return std::all_of(out.begin(), out.end(), same) && std::all_of(lse.begin(), lse.end(), same);
  }
};

TEST_F(Embedded, EveryError) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const embedded::Type unknown = static_cast<embedded::Type>(7);
  const struct {
    Error error;
    const char* what;
    void (*change)(Sound&);
  } cases[] = {
      {Error::kOk, "sound", [](Sound&) {}},
      {Error::kOk, "rings", [](Sound& s) { s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr; }},
      {Error::kSize, "B", [](Sound& s) { s.p.B = -1; }},
      {Error::kSize, "Hq", [](Sound& s) { s.p.Hq = -4; }},
      {Error::kSize, "Hkv", [](Sound& s) { s.p.Hkv = -2; }},
      {Error::kSize, "Tq", [](Sound& s) { s.p.Tq = -1; }},
      {Error::kSize, "Tk", [](Sound& s) { s.p.Tk = -1; }},
      {Error::kSize, "dk", [](Sound& s) { s.p.dk = 0; }},
      {Error::kSize, "dv", [](Sound& s) { s.p.dv = 0; }},
      {Error::kSize, "no query heads", [](Sound& s) { s.p.Hq = 0; }},
      {Error::kSize, "no key heads", [](Sound& s) { s.p.Hkv = 0; }},
      {Error::kHeads, "5 over 2", [](Sound& s) { s.p.Hq = 5; }},
      {Error::kUnsupported, "dk", [](Sound& s) { s.p.dk = embedded::kMostChannels + 1; }},
      {Error::kUnsupported, "dv", [](Sound& s) { s.p.dv = embedded::kMostChannels + 1; }},
      {Error::kStride, "q", [](Sound& s) { s.p.q.stride[1] = kMost / 2; }},
      {Error::kStride, "k", [](Sound& s) { s.p.k.stride[2] = kMost / 2; }},
      {Error::kStride, "v", [](Sound& s) { s.p.v.stride[3] = -kMost; }},
      {Error::kStride, "out", [](Sound& s) { s.p.out.stride[0] = kMost; }},
      {Error::kStride, "lse", [](Sound& s) { s.p.lse.stride[2] = kMost / 2; }},
      {Error::kStride, "bias", [](Sound& s) { s.p.bias.stride[0] = kMost; }},
      {Error::kStride, "elements",
       [](Sound& s) {
         s.p.B = kMost / 2;
         for (auto* tensor : {&s.p.q, &s.p.k, &s.p.v}) std::fill_n(tensor->stride, 4, 0);
       }},
      {Error::kScale, "infinite",
       [](Sound& s) { s.p.has_scale = true, s.p.scale = std::numeric_limits<float>::infinity(); }},
      {Error::kScale, "NaN",
       [](Sound& s) { s.p.has_scale = true, s.p.scale = std::numeric_limits<float>::quiet_NaN(); }},
      {Error::kCausal, "3", [](Sound& s) { s.p.causal = static_cast<embedded::Causal>(3); }},
      {Error::kCausal, "-1", [](Sound& s) { s.p.causal = static_cast<embedded::Causal>(-1); }},
      {Error::kWindow, "left", [](Sound& s) { s.p.window_left = -2; }},
      {Error::kWindow, "right", [](Sound& s) { s.p.window_right = -2; }},
      {Error::kOffset, "beyond", [](Sound& s) { s.p.query_offset = embedded::kMostOffset + 1; }},
      {Error::kOffset, "one of them",
       [](Sound& s) {
         s.offsets[1] = -embedded::kMostOffset - 1, s.p.query_offsets = s.offsets.data();
       }},
      {Error::kOffset, "both",
       [](Sound& s) { s.p.query_offset = 0, s.p.query_offsets = s.offsets.data(); }},
      {Error::kLength, "queries", [](Sound& s) { s.lengths[1] = 6; }},
      {Error::kLength, "negative queries", [](Sound& s) { s.lengths[1] = -1; }},
      {Error::kLength, "keys", [](Sound& s) { s.kv_lengths[1] = 10; }},
      {Error::kLength, "negative keys", [](Sound& s) { s.kv_lengths[0] = -1; }},
      {Error::kRing, "with lengths", [](Sound& s) { s.p.rings = s.rings.data(); }},
      {Error::kRing, "capacity",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[1].capacity = 10;
       }},
      {Error::kRing, "length",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr;
         s.rings[1].length = embedded::kMostOffset + 1;
       }},
      {Error::kRing, "negative length",
       [](Sound& s) {
         s.p.rings = s.rings.data(), s.p.kv_lengths = nullptr, s.rings[0].length = -1;
       }},
      {Error::kNullData, "q", [](Sound& s) { s.p.q.data = nullptr; }},
      {Error::kNullData, "k", [](Sound& s) { s.p.k.data = nullptr; }},
      {Error::kNullData, "v", [](Sound& s) { s.p.v.data = nullptr; }},
      {Error::kNullData, "out", [](Sound& s) { s.p.out.data = nullptr; }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(Name(c.error)) + ": " + c.what);
    Sound s;
    c.change(s);
    std::vector<char> scratch(Instance().scratch_bytes(6, 7, INT64_MAX));
    EXPECT_EQ(Attention(Instance(), s.p, scratch.data(), scratch.size()), c.error);
    EXPECT_EQ(s.Untouched(), c.error != Error::kOk);
  }
  for (embedded::Type embedded::Tensor::* type : {&embedded::Tensor::type}) {
    for (embedded::Tensor embedded::Problem::* tensor :
         {&embedded::Problem::q, &embedded::Problem::k, &embedded::Problem::v,
          &embedded::Problem::bias}) {
      Sound s;
      s.p.*tensor.*type = unknown;
      EXPECT_EQ(Compute(s.p), Error::kType);
      EXPECT_TRUE(s.Untouched());
    }
  }
  for (embedded::Type type : {unknown, embedded::Type::kF16}) {
    Sound s;
    s.p.lse.type = type;
    EXPECT_EQ(Compute(s.p), Error::kType);
    s.p.lse.type = embedded::Type::kF32;
    s.p.out.type = unknown;
    EXPECT_EQ(Compute(s.p), Error::kType);
    EXPECT_TRUE(s.Untouched());
  }
}

TEST_F(Embedded, ScratchIsExact) {
  Sound s;
  const size_t bytes = Instance().least_scratch_bytes(6, 7, 5 * 2);
  std::vector<char> scratch(bytes);
  EXPECT_EQ(Attention(Instance(), s.p, scratch.data(), bytes - 1), Error::kScratch);
  EXPECT_EQ(Attention(Instance(), s.p, nullptr, bytes), Error::kScratch);
  EXPECT_TRUE(s.Untouched());
  EXPECT_EQ(Attention(Instance(), s.p, scratch.data(), bytes), Error::kOk);
  // Whatever Tq and Tk are; and never less for more rows, since sequences may be shorter.
  for (const auto bytes_of : {Instance().scratch_bytes, Instance().least_scratch_bytes}) {
    size_t before = 0;
    for (int64_t rows = 0; rows < 300; ++rows) {
      const size_t now = bytes_of(64, 80, rows);
      EXPECT_GE(now, before) << rows << " rows";
      before = now;
    }
    EXPECT_EQ(before, bytes_of(64, 80, std::numeric_limits<int64_t>::max()));
  }
}

TEST(EmbeddedErrors, HaveNames) {
  EXPECT_STREQ(Name(Error::kOk), "ok");
  EXPECT_STREQ(Name(Error::kScratch), "scratch");
  EXPECT_STREQ(Name(Error::kArithmetic), "arithmetic");
  EXPECT_STREQ(Name(static_cast<Error>(15)), "unknown");
  EXPECT_STREQ(Name(static_cast<Error>(-1)), "unknown");
}

}  // namespace
}  // namespace fovea::test
