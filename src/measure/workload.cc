#include "measure/workload.h"

#include <algorithm>
#include <cstdlib>

#include "measure/text.h"

namespace fovea::measure {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;    // of one axis of a workload
constexpr double kMaxElements = 1099511627776.0;  // 2^40, of one tensor of a workload
constexpr float kSoftcap = 20;
constexpr int64_t kPaddingKeys = 100;

bool ParseSize(const std::string& text, int64_t* size) {
  if (text.empty() || text.size() > 8 || text.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *size = std::strtoll(text.c_str(), nullptr, 10);
  return *size >= 1 && *size <= kMaxSize;
}

// "32" or "32/8" (`separator` '/'), "512" or "1x4096" ('x'): the second is the first where it is
// missing.
bool ParsePair(const std::string& text, char separator, int64_t* first, int64_t* second) {
  const std::vector<std::string> parts = Split(text, separator);
  return parts.size() <= 2 && ParseSize(parts.front(), first) && ParseSize(parts.back(), second);
}

bool ParseShape(const std::string& text, Workload* w) {
  std::vector<std::string> parts = Split(text, ',');
  w->causal = parts.back() == "causal";
  if (w->causal) parts.pop_back();
  if (parts.size() != 4 && parts.size() != 5) return false;
  return ParseSize(parts[0], &w->B) && ParsePair(parts[1], '/', &w->Hq, &w->Hkv) &&
         ParsePair(parts[2], 'x', &w->Tq, &w->Tk) && ParseSize(parts[3], &w->dk) &&
         ParseSize(parts.back(), &w->dv);
}

// Each of these is false where the workload has such a thing already.
bool SetMask(Workload* w, MaskKind mask) {
  const bool first = w->mask == MaskKind::kNone;
  w->mask = mask;
  return first;
}

bool SetBias(Workload* w, BiasKind bias) {
  const bool first = w->bias == BiasKind::kNone && !w->additive;
  w->bias = bias;
  return first;
}

bool SetType(Workload* w, DType type) {
  const bool first = w->type == DType::kF32;
  w->type = type;
  return first;
}

bool SetOnce(bool* flag) {
  const bool first = !*flag;
  *flag = true;
  return first;
}

constexpr struct {
  const char* name;
  bool (*add)(Workload*);
} kModifiers[] = {
    {"softcap",
     [](Workload* w) {
       const bool first = w->softcap == 0;
       w->softcap = kSoftcap;
       return first;
     }},
    {"alibi", [](Workload* w) { return SetOnce(&w->alibi); }},
    {"sinks", [](Workload* w) { return SetOnce(&w->sinks); }},
    {"headscales", [](Workload* w) { return SetOnce(&w->head_scales); }},
    {"ranges", [](Workload* w) { return SetOnce(&w->documents); }},
    {"mask", [](Workload* w) { return SetMask(w, MaskKind::kRandom); }},
    {"padmask", [](Workload* w) { return SetMask(w, MaskKind::kPadding); }},
    {"trimask", [](Workload* w) { return SetMask(w, MaskKind::kTriangle); }},
    {"bandmask", [](Workload* w) { return SetMask(w, MaskKind::kBand); }},
    {"bias", [](Workload* w) { return SetBias(w, BiasKind::kDense); }},
    {"distbias", [](Workload* w) { return SetBias(w, BiasKind::kDistance); }},
    {"keybias", [](Workload* w) { return SetBias(w, BiasKind::kKeys); }},
    {"additive",
     [](Workload* w) {
       return w->mask != MaskKind::kNone && w->bias == BiasKind::kNone && SetOnce(&w->additive);
     }},
    {"nan",
     [](Workload* w) {
       return w->kv_type == DType::kNone && w->page_keys == 0 && SetOnce(&w->nan) &&
              SetMask(w, MaskKind::kPadding);
     }},
    {"bf16", [](Workload* w) { return SetType(w, DType::kBF16); }},
    {"f16", [](Workload* w) { return SetType(w, DType::kF16); }},
    {"mla",
     [](Workload* w) {
       return w->kv_type == DType::kNone && SetOnce(&w->values_in_keys) && w->dv <= w->dk;
     }},
};

constexpr char kWindow[] = "window=";
constexpr char kKv[] = "kv=";
constexpr char kPages[] = "pages=";

bool SetKvType(Workload* w, const std::string& name) {
  const bool first = w->kv_type == DType::kNone && !w->values_in_keys && !w->nan;
  for (int32_t n = 1; n < internal::kFormatCount; ++n) {
    const DType type = static_cast<DType>(n);
    if (name == Name(type) && IsQuantised(type)) w->kv_type = type;
  }
  const int64_t unit = UnitElements(w->kv_type);
  return first && w->kv_type != DType::kNone && w->dk % unit == 0 && w->dv % unit == 0;
}

// Whether text is `name` and a size, which is set where there was none.
bool SetSize(const std::string& text, const std::string& name, int64_t* size, bool* set) {
  if (text.compare(0, name.size(), name) != 0) return false;
  *set = *size == 0 && ParseSize(text.substr(name.size()), size);
  return true;
}

bool AddModifier(const std::string& text, Workload* w) {
  if (text != Name(DType::kBF16) && text != Name(DType::kF16))
    w->modifiers += (w->modifiers.empty() ? "" : "+") + text;
  bool set = false;
  if (SetSize(text, kWindow, &w->window, &set)) return set;
  if (SetSize(text, kPages, &w->page_keys, &set)) return set && !w->nan;
  if (text.compare(0, sizeof(kKv) - 1, kKv) == 0) return SetKvType(w, text.substr(sizeof(kKv) - 1));
  for (const auto& modifier : kModifiers) {
    if (text == modifier.name) return modifier.add(w);
  }
  return false;
}

// SHAPE[+MODIFIER]…
constexpr struct {
  const char* name;
  const char* text;
} kNamed[] = {
    {"P1", "1,12,512,64"},           {"P2", "1,8,2048,64,causal"},
    {"P3", "1,4,4096,128,causal"},   {"P4", "1,32/8,1024,128,causal"},
    {"P5", "1,8,256x4096,64"},       {"P6", "64,12,128,32"},
    {"D1", "1,32/8,1x4096,128"},     {"D2", "8,32/8,1x2048,128"},
    {"D3", "1,32/8,1x32768,128"},    {"F1", "1,1,4096,128"},
    {"X0", "1,8,1024,64"},           {"X1", "1,8,1024,64+trimask"},
    {"X2", "1,8,1024,64+distbias"},  {"X3", "1,8,1024,64+padmask"},
    {"X4", "1,8,1024,64,32"},        {"X5", "1,8,1024,64,128"},
    {"X6", "1,8,1024,72"},           {"X7", "1,8,1024,65"},
    {"X8", "1,8,1024,80"},           {"X9", "1,8,1000,64"},
    {"X10", "1,8,1024,256"},         {"X11", "1,8,1024,64,causal"},
    {"X12", "1,8,1024,16"},          {"X13", "1,4/1,512,576,512,causal+mla"},
    {"X14", "1,32/8,16x4096,128"},   {"X15", "64,12,16,32"},
    {"X16", "1,8,4096,64+bandmask"}, {"X17", "1,8,1024,64+softcap"},
};

constexpr const char* kModifierSet[] = {
    "P2",
    "P2+softcap",
    "P2+alibi",
    "P2+sinks",
    "P2+headscales",
    "P2+bias",
    "P2+keybias",
    "P2+mask",
    "P2+padmask",
    "P2+ranges",
    "P2+nan",
    "P2+window=256",
    "P2+alibi+sinks",
    "P2+softcap+alibi+sinks",
};

std::vector<Workload> MakeNamedWorkloads() {
  std::vector<Workload> workloads;
  for (const auto& named : kNamed) {
    std::vector<std::string> parts = Split(named.text, '+');
    Workload w;
    ParseShape(parts[0], &w);
    for (size_t n = 1; n < parts.size(); ++n) AddModifier(parts[n], &w);
    w.name = named.name;
    workloads.push_back(w);
  }
  return workloads;
}

// Of a workload that this file names itself.
Workload Named(const std::string& text) {
  Workload workload;
  std::string error;
  ParseWorkload(text, &workload, &error);
  return workload;
}

// Mixes the bits of n (the finaliser of splitmix64, Steele et al. 2014).
uint64_t Scatter(uint64_t n) {
  n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
  n = (n ^ n >> 27) * 0x94d049bb133111ebu;
  return n ^ n >> 31;
}

}  // namespace

bool Workload::ModifiesScores() const {
  return window > 0 || softcap > 0 || alibi || sinks || head_scales || documents ||
         mask != MaskKind::kNone || bias != BiasKind::kNone;
}

bool Workload::HasShapeOf(const Workload& other) const {
  return B == other.B && Hq == other.Hq && Hkv == other.Hkv && Tq == other.Tq && Tk == other.Tk &&
         dk == other.dk && dv == other.dv;
}

int64_t Workload::PaddingKeys() const { return std::min(kPaddingKeys, Tk / 2); }

bool Workload::MaskAllows(int64_t i, int64_t j) const {
  switch (mask) {
    case MaskKind::kNone:
      return true;
    case MaskKind::kRandom:
      return Scatter(static_cast<uint64_t>(i * Tk + j) + 1) % 10 != 0;
    case MaskKind::kPadding:
      return j < Tk - PaddingKeys();
    case MaskKind::kTriangle:
      return j <= Position(i);
    case MaskKind::kBand:
      return j <= Position(i) && j > Position(i) - kBandKeys;
  }
  return true;
}

void Workload::DocumentOf(int64_t i, int64_t* first, int64_t* end) const {
  const int64_t position = std::clamp<int64_t>(Position(i), 0, Tk - 1);
  const int64_t document = (kDocuments * (position + 1) - 1) / Tk;
  *first = document * Tk / kDocuments;
  *end = (document + 1) * Tk / kDocuments;
}

double Workload::Pairs() const {
  double pairs = 0;
  for (int64_t i = 0; i < Tq; ++i) {
    int64_t end = causal || window > 0 ? std::clamp<int64_t>(Position(i) + 1, 0, Tk) : Tk;
    int64_t first = window > 0 ? std::clamp<int64_t>(Position(i) + 1 - window, 0, end) : 0;
    if (documents) {
      int64_t of_document, behind;
      DocumentOf(i, &of_document, &behind);
      first = std::max(first, of_document);
      end = std::min(end, behind);
    }
    int64_t visible = std::max<int64_t>(0, end - first);
    if (mask != MaskKind::kNone) {
      visible = 0;
      for (int64_t j = first; j < end; ++j) visible += MaskAllows(i, j) ? 1 : 0;
    }
    pairs += static_cast<double>(visible);
  }
  return pairs * static_cast<double>(B * Hq);
}

double Workload::Flops() const { return 2 * Pairs() * static_cast<double>(dk + dv); }

double Workload::KvBytes() const {
  // Later queries see no earlier keys than the first does, and the last one sees the last key.
  int64_t first = window > 0 ? std::max<int64_t>(0, Position(0) + 1 - window) : 0;
  if (documents) {
    int64_t of_document, behind;
    DocumentOf(0, &of_document, &behind);
    first = std::max(first, of_document);
  }
  const int64_t keys = Tk - first;
  const DType kv = TypeOfKv();
  const int64_t row = BytesOf(kv, dk) + (values_in_keys ? 0 : BytesOf(kv, dv)) +
                      (HasScaleViews(kv) ? 2 * SizeOf(DType::kF32) : 0);
  return static_cast<double>(B * Hkv * keys) * static_cast<double>(row);
}

const std::vector<Workload>& NamedWorkloads() {
  static const std::vector<Workload> kWorkloads = MakeNamedWorkloads();
  return kWorkloads;
}

bool ParseWorkload(const std::string& text, Workload* workload, std::string* error) {
  const std::vector<std::string> parts = Split(text, '+');
  Workload parsed;
  bool known = false;
  for (const Workload& named : NamedWorkloads()) {
    if (named.name == parts[0]) parsed = named, known = true;
  }
  if (!known && !ParseShape(parts[0], &parsed)) {
    *error = "workload '" + text +
             "': expected P1 … P6, D1 … D3, F1, X0 … X17 or B,Hq[/Hkv],Tq[xTk],d[,dv][,causal], "
             "then [+MODIFIER]…";
    return false;
  }
  if (parsed.Hq % parsed.Hkv != 0) {
    *error = "workload '" + text + "': Hq = " + std::to_string(parsed.Hq) +
             " is not a multiple of Hkv = " + std::to_string(parsed.Hkv);
    return false;
  }
  parsed.name = text;
  for (size_t n = 1; n < parts.size(); ++n) {
    if (AddModifier(parts[n], &parsed)) continue;
    *error = "workload '" + text + "': '+" + parts[n] +
             "' is unknown, contradicts what stands before it, or needs dv ≤ dk (mla); known: ";
    for (const auto& modifier : kModifiers) *error += std::string(modifier.name) + ", ";
    *error += std::string(kWindow) + "N, " + kKv + "TYPE, " + kPages + "N";
    return false;
  }
  const double queries = static_cast<double>(parsed.B) * static_cast<double>(parsed.Hq) *
                         static_cast<double>(parsed.Tq);
  const double keys = static_cast<double>(parsed.B) * static_cast<double>(parsed.Hq) *
                      static_cast<double>(parsed.Tk);
  // stored, or at least counted, pair by pair
  const bool pairwise = parsed.mask != MaskKind::kNone || parsed.bias != BiasKind::kNone;
  if (std::max(queries, keys) * static_cast<double>(std::max(parsed.dk, parsed.dv)) >
          kMaxElements ||
      (pairwise && queries * static_cast<double>(parsed.Tk) > kMaxElements)) {
    *error = "workload '" + text + "' is larger than 2^40 elements";
    return false;
  }
  *workload = parsed;
  return true;
}

Workload InType(const Workload& workload, DType type) {
  Workload typed = workload;
  typed.type = type;
  if (type != DType::kF32) typed.name += std::string("+") + Name(type);
  return typed;
}

std::vector<Workload> WorkloadSet(const std::string& name) {
  std::vector<Workload> workloads;
  if (name == "modifiers") {
    for (const char* text : kModifierSet) workloads.push_back(Named(text));
  }
  if (name == "variants") {
    for (const Workload& w : NamedWorkloads()) {
      if (w.name[0] == 'X') workloads.push_back(w);
    }
  }
  return workloads;
}

Workload BaseOf(const Workload& workload) {
  const std::vector<std::string> parts = Split(workload.name, '+');
  if (parts.size() == 1) return workload.name[0] == 'X' ? Named("X0") : workload;
  if (std::find(parts.begin() + 1, parts.end(), "nan") == parts.end()) return Named(parts[0]);
  std::string clean = parts[0];
  for (size_t n = 1; n < parts.size(); ++n)
    clean += "+" + (parts[n] == "nan" ? "padmask" : parts[n]);
  return Named(clean);
}

}  // namespace fovea::measure
