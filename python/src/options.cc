#include "options.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "numbers.h"
#include "score_function.h"

namespace fovea::python {
namespace {

enum class Key {
  kArray,   // of a tensor
  kReturn,  // return_ an output that was not given
  kScale,
  kCausal,
  kWindow,
  kQueryOffset,
  kBlockMap,
  kScoreFunction,
  kSoftcap,
  kMaskBits,
  kMaskShape,
  kScoreStage,
  kKGroupStride,
  kVGroupStride,
  kPageKeys,
  kRing,
  kLayout,
  kOutLayout,
  kThreads,
  kIsa,  // from here on of plans …
  kEngine,
  kProduct,
  kMaxQueries,  // … and of those that are kept
  kMaxKeys,
  kFixedMask,
  kFixedBias,
  kFixedTables,
};

struct Keyword {
  std::string name;
  Key key;
  size_t tensor = 0;  // index of its row, where it is one's
  PyObject* interned = nullptr;
};

// Those that are more than the array of a tensor.
std::vector<Keyword> MadeKeywords() {
  std::vector<Keyword> keywords = {
      {"scale", Key::kScale},
      {"causal", Key::kCausal},
      {"layout", Key::kLayout},
      {"threads", Key::kThreads},
      {"out_layout", Key::kOutLayout},
      {"window", Key::kWindow},
      {"query_offset", Key::kQueryOffset},
      {"softcap", Key::kSoftcap},
      {"block_map", Key::kBlockMap},
      {"score_function", Key::kScoreFunction},
      {"mask_bits", Key::kMaskBits},
      {"mask_shape", Key::kMaskShape},
      {"score_stage", Key::kScoreStage},
      {"k_group_stride", Key::kKGroupStride},
      {"v_group_stride", Key::kVGroupStride},
      {"page_keys", Key::kPageKeys},
      {"ring", Key::kRing},
      {"isa", Key::kIsa},
      {"engine", Key::kEngine},
      {"product", Key::kProduct},
      {"max_queries", Key::kMaxQueries},
      {"max_keys", Key::kMaxKeys},
      {"fixed_mask", Key::kFixedMask},
      {"fixed_bias", Key::kFixedBias},
      {"fixed_tables", Key::kFixedTables},
  };
  size_t index = 0;
  const Problem problem;
  ForEachTensor(
      [&](const TensorRow& row, const auto&) {
        const size_t tensor = index++;
        if (row.required && row.role == Role::kInput) return;  // q, k and v are no keywords
        const std::string name = KeywordOf(row);
        const auto made = std::find_if(keywords.begin(), keywords.end(),
                                       [&](const Keyword& k) { return k.name == name; });
        if (made != keywords.end()) {
          made->tensor = tensor;
        } else {
          keywords.push_back({name, Key::kArray, tensor});
        }
        if (row.role == Role::kOutput && !row.required)
          keywords.push_back({"return_" + name, Key::kReturn, tensor});
      },
      problem);
  for (Keyword& k : keywords) k.interned = PyUnicode_InternFromString(k.name.c_str());
  return keywords;
}

const Keyword* Find(PyObject* name) {
  // never destroyed: Python may be gone when the process ends
  static const std::vector<Keyword>& keywords = *new std::vector<Keyword>(MadeKeywords());
  for (const Keyword& k : keywords) {
    if (k.interned == name) return &k;
  }
  // Names that a program makes up at run time are not interned.
  for (const Keyword& k : keywords) {
    if (PyUnicode_CompareWithASCIIString(name, k.name.c_str()) == 0) return &k;
  }
  return nullptr;
}

Causal ReadCausal(nb::handle value) {
  bool flag;
  if (IsBool(value, &flag)) return flag ? Causal::kBottomRight : Causal::kNone;
  std::string name;
  if (nb::try_cast(value, name)) {
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "top-left") return Causal::kTopLeft;
    if (name == "bottom-right") return Causal::kBottomRight;
  }
  Raise(PyExc_ValueError, "causal = " + Repr(value) +
                              ", expected None, 'top-left' or 'bottom-right' (what True means)");
}

Window ReadWindow(nb::handle value) {
  if (!nb::isinstance<nb::sequence>(value) || nb::len(value) != 2) {
    Raise(PyExc_TypeError, "window = " + Repr(value) + ", expected a pair (left, right)");
  }
  const auto side = [](nb::handle v) {
    return v.is_none() ? int64_t{-1} : Integer(v, "window", "integers or None");
  };
  return {side(value[0]), side(value[1])};
}

bool ReadLayout(nb::handle value, const char* keyword) {
  std::string name;
  if (nb::try_cast(value, name)) {
    if (name == "BHTD") return false;
    if (name == "BTHD") return true;
  }
  Raise(PyExc_ValueError,
        std::string(keyword) + " = " + Repr(value) + ", expected 'BHTD' or 'BTHD'");
}

const char* Name(ScoreStage stage) {
  static const char* const names[] = {"scaled", "softcapped", "masked", "weights"};
  return names[static_cast<int>(stage)];
}

// The value of an enumeration by its name, of `first` … `last`. ValueError that lists the names
// otherwise.
template <class Enum>
Enum ByName(nb::handle value, const char* argument, Enum first, Enum last) {
  std::string given, names;
  const bool text = nb::try_cast(value, given);
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i) {
    const char* const name = Name(static_cast<Enum>(i));
    if (text && given == name) return static_cast<Enum>(i);
    names += (names.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  Raise(PyExc_ValueError,
        std::string(argument) + " = " + Repr(value) + ", expected one of " + names);
}

}  // namespace

bool Flag(nb::handle value, const char* name) {
  bool flag;
  if (!IsBool(value, &flag))
    Raise(PyExc_TypeError, std::string(name) + " = " + Repr(value) + ", expected True or False");
  return flag;
}

const char* KeywordOf(const TensorRow& row) {
  static constexpr const char* kOthers[][2] = {{"query_offsets", "query_offset"},
                                               {"block_map.visible", "block_map"},
                                               {"pages.table", "page_table"},
                                               {"pages.begins", "page_begins"}};
  for (const auto& other : kOthers) {
    if (std::strcmp(row.name, other[0]) == 0) return other[1];
  }
  return row.name;
}

size_t TensorOf(const char* keyword) {
  size_t index = 0, found = kTensorCount;
  const Problem problem;
  ForEachTensor(
      [&](const TensorRow& row, const auto&) {
        if (std::strcmp(KeywordOf(row), keyword) == 0) found = index;
        ++index;
      },
      problem);
  return found;
}

void Options::Read(const nb::kwargs& keywords, Kind kind) {
  PyObject *name, *object;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords.ptr(), &position, &name, &object)) {
    const Keyword* const keyword = Find(name);
    const bool plans = keyword != nullptr && keyword->key >= Key::kIsa;
    const bool only_plans = keyword != nullptr && keyword->key >= Key::kMaxQueries;
    if (keyword == nullptr || (plans && kind == Kind::kRun) ||
        (only_plans && kind == Kind::kAttention)) {
      const char* const function = kind == Kind::kAttention ? "attention"
                                   : kind == Kind::kPlan    ? "Plan"
                                                            : "Plan.run";
      Raise(PyExc_TypeError,
            std::string(function) + "() got an unexpected keyword argument " + Repr(name));
    }
    const nb::handle value(object);
    const bool none = value.is_none();
    switch (keyword->key) {
      case Key::kArray:
        arrays[keyword->tensor] = none ? nb::object() : nb::borrow(value);
        break;
      case Key::kReturn:
        wanted[keyword->tensor] = !none && Flag(value, keyword->name.c_str());
        break;
      case Key::kMaskBits:
        mask_bits = none ? nb::object() : nb::borrow(value);
        break;
      case Key::kScale:
        if (none) {
          score.scale.reset();
        } else {
          score.scale = Float(value, "scale", "a number");
        }
        break;
      case Key::kCausal:
        score.causal = none ? Causal::kNone : ReadCausal(value);
        break;
      case Key::kWindow:
        score.window = none ? Window() : ReadWindow(value);
        break;
      case Key::kQueryOffset:
        score.query_offset.reset();
        arrays[keyword->tensor] = nb::object();
        if (!none && IsScalar(value)) {
          score.query_offset = Integer(value, "query_offset", "an integer of 64 bits");
        } else if (!none) {
          arrays[keyword->tensor] = nb::borrow(value);
        }
        break;
      case Key::kBlockMap:
        score.block_map = {};
        arrays[keyword->tensor] = nb::object();
        if (none) break;
        if (!PyTuple_Check(object) || PyTuple_Size(object) != 3) {
          Raise(PyExc_TypeError, "block_map is a " + TypeName(value) +
                                     ", expected a tuple (visible, queries, keys)");
        }
        arrays[keyword->tensor] = value[0];
        score.block_map.queries = Integer(value[1], "block_map[1]", "an integer");
        score.block_map.keys = Integer(value[2], "block_map[2]", "an integer");
        break;
      case Key::kScoreFunction:
        score.function = {};
        kept_memory.reset();
        kept_function = none ? nb::object() : nb::borrow(value);
        if (!none) score.function = ReadScoreFunction(value, &kept_memory);
        break;
      case Key::kSoftcap:
        score.softcap = none ? 0 : Float(value, "softcap", "a number");
        break;
      case Key::kMaskShape: {
        mask_rank = 0;
        if (none) break;
        const bool sequence = PyTuple_Check(object) || PyList_Check(object);
        const size_t rank = sequence ? nb::len(value) : 0;
        if (rank < 1 || rank > static_cast<size_t>(kMaxRank))
          Raise(PyExc_TypeError, "mask_shape: expected a tuple of 1 to 4 integers");
        for (size_t a = 0; a < rank; ++a)
          mask_shape[a] = Integer(value[a], "mask_shape", "integers");
        mask_rank = static_cast<int>(rank);
        break;
      }
      case Key::kScoreStage:
        stage = none ? ScoreStage::kMasked
                     : ByName(value, "score_stage", ScoreStage::kScaled, ScoreStage::kWeights);
        break;
      case Key::kKGroupStride:
        k_group_stride = none ? 0 : Integer(value, "k_group_stride", "an integer");
        break;
      case Key::kVGroupStride:
        v_group_stride = none ? 0 : Integer(value, "v_group_stride", "an integer");
        break;
      case Key::kPageKeys:
        page_keys = none ? 0 : Integer(value, "page_keys", "an integer");
        break;
      case Key::kRing:
        ring = !none && Flag(value, "ring");
        break;
      case Key::kLayout:
        bthd = !none && ReadLayout(value, "layout");
        break;
      case Key::kOutLayout:
        out_layout = !none;
        out_bthd = !none && ReadLayout(value, "out_layout");
        break;
      case Key::kThreads:
        threads = none ? 0 : SmallInteger(value, "threads", "an integer");
        if (threads < 0)
          Raise(PyExc_ValueError, "threads = " + std::to_string(threads) +
                                      ", expected 1 or more, or 0 for the default");
        break;
      case Key::kIsa:
        plan.target = Target::kAuto;
        if (none) break;
        if (!PyUnicode_Check(object))
          Raise(PyExc_TypeError, "isa = " + Repr(value) + ", expected a string");
        Check(ParseTarget(nb::cast<std::string>(value).c_str(), &plan.target));
        break;
      case Key::kEngine:
        plan.engine = none ? Engine::kAuto : ByName(value, "engine", Engine::kAuto, Engine::kRow);
        break;
      case Key::kProduct:
        plan.product =
            none ? Product::kAuto : ByName(value, "product", Product::kAuto, Product::kBF16);
        break;
      case Key::kMaxQueries:
        plan.max_queries = none ? 0 : Integer(value, "max_queries", "an integer");
        break;
      case Key::kMaxKeys:
        plan.max_keys = none ? 0 : Integer(value, "max_keys", "an integer");
        break;
      case Key::kFixedMask:
        plan.fixed_mask = !none && Flag(value, "fixed_mask");
        break;
      case Key::kFixedBias:
        plan.fixed_bias = !none && Flag(value, "fixed_bias");
        break;
      case Key::kFixedTables:
        plan.fixed_tables = !none && Flag(value, "fixed_tables");
        break;
    }
  }
  if (!out_layout) out_bthd = bthd;
}

}  // namespace fovea::python
