#include "cache.h"

#include <string>

#include "errors.h"
#include "fovea/kv_cache.h"
#include "gil.h"
#include "numbers.h"
#include "overlap.h"
#include "running.h"

namespace fovea::python {
namespace {

const char* const kAppendDoc =
    R"(Writes new keys and values into a cache: rounded to nearest even, or quantised as docs/caches.md says. The same bytes for any number of threads.

k [B, Hkv, n, dk], v [B, Hkv, n, dv] (None where the cache has none), or packed [1, Hkv, rows, d]: float32, float16 or bfloat16, any strides. The cache is k_cache
[pages, Hkv, P, dk] and v_cache [pages, Hkv, P, dv], or [B, Hkv, capacity, d] without pages: arrays to be written, as attention() takes them for k and v. See also
fovea.KVCache, which makes one.

Keywords:
  k_scale, k_zero, v_scale, v_zero   arrays to be written, float32 [pages, Hkv, P, groups], of int8 (no zeros), uint8, 'u4' and 'u4_high'
  k_scale_fixed, v_scale_fixed   True: k_scale is only read; of int8, 'i4', 'i4_high' (that of float8 always is)
  k_group_stride, v_group_stride   bytes from one group of channels to the next, where groups lie apart
  ring            position p lies in row p mod capacity
  slots           int32 or int64 [B, n], or [rows] of packed tokens, or a list where B is 1: the number of the row, page·P + row, that a token goes to; below 0: skipped;
                  of equal ones the last wins
  past_lengths    without slots: array or list of B integers, the keys that each sequence has before; 0 by default
  page_table      int32 or int64 [B, max], or with page_begins (array or list of B + 1) [numbers]: pages of the positions
  page_keys       the most keys of a sequence, where that is less than its pages hold
  lengths         array or list of B integers: so many tokens of each sequence are there; all by default
  cu_seqlens      array or list of B + 1 integers: packed tokens
  layout          of k and v: 'BHTD' (default) or 'BTHD'
  threads, isa    as in attention()

Returns how many NaN became numbers, which codes with fixed scales cannot hold. Raises as attention() does; on an error nothing was written.)";

// An output that is given, or an absent one; one that is only read may be read-only.
MutableTensorView Stored(Borrower& borrower, nb::handle array, const char* name, bool fixed) {
  if (array.is_none()) return MutableTensorView();
  if (!fixed) return borrower.MutableCodes(array, name);
  const TensorView read = borrower.Codes(array, name);
  MutableTensorView view;  // Append does not write it
  view.data = const_cast<void*>(read.data);
  view.dtype = read.dtype;
  view.rank = read.rank;
  for (int a = 0; a < kMaxRank; ++a) view.shape[a] = read.shape[a], view.stride[a] = read.stride[a];
  return view;
}

bool IsF8(DType dtype) { return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2; }

bool Flag(nb::handle value, const char* name) {
  bool flag = false;
  if (!value.is_none() && !IsBool(value, &flag))
    Raise(PyExc_TypeError, std::string(name) + ": expected True or False");
  return flag;
}

int64_t NumberOr0(nb::handle value, const char* name) {
  return value.is_none() ? 0 : Integer(value, name, "an integer");
}

TensorView IntegersOr(Borrower& borrower, nb::handle array, const char* name) {
  return array.is_none() ? TensorView() : borrower.Integers(array, name);
}

// A list of slots is that of one sequence.
void LiftSlots(NewTokens* tokens) {
  TensorView& slots = tokens->slots;
  if (slots.rank != 1 || tokens->cu_seqlens.present() || tokens->k.shape[0] != 1) return;
  slots.rank = 2;
  slots.shape[1] = slots.shape[0], slots.stride[1] = slots.stride[0];
  slots.shape[0] = 1, slots.stride[0] = 0;
}

void CheckOverlap(const KVCache& cache, const NewTokens& tokens) {
  const auto refuse = [](const MutableTensorView& a, const char* name, const TensorView& b,
                         const char* other) {
    if (a.present() && b.present() && Overlap(a, b))
      Raise(PyExc_ValueError, std::string(name) + " and " + other + " share memory");
  };
  for (const auto& [view, name] : {std::pair(cache.k, "k_cache"), std::pair(cache.v, "v_cache")}) {
    refuse(view, name, tokens.k, "k");
    refuse(view, name, tokens.v, "v");
  }
  refuse(cache.k, "k_cache", cache.v, "v_cache");
}

int64_t AppendTokens(nb::handle k, nb::handle v, nb::handle k_cache, nb::handle v_cache,
                     nb::handle k_scale, nb::handle k_zero, nb::handle v_scale, nb::handle v_zero,
                     nb::handle k_scale_fixed, nb::handle v_scale_fixed, nb::handle k_group_stride,
                     nb::handle v_group_stride, nb::handle ring, nb::handle slots,
                     nb::handle past_lengths, nb::handle page_table, nb::handle page_begins,
                     nb::handle page_keys, nb::handle lengths, nb::handle cu_seqlens,
                     nb::handle layout, nb::handle threads, nb::handle isa) {
  Borrower borrower;
  KVCache cache;
  cache.k_scale_fixed = Flag(k_scale_fixed, "k_scale_fixed");
  cache.v_scale_fixed = Flag(v_scale_fixed, "v_scale_fixed");
  cache.ring = Flag(ring, "ring");
  cache.k = Stored(borrower, k_cache, "k_cache", false);
  cache.v = Stored(borrower, v_cache, "v_cache", false);
  cache.k_scale = Stored(borrower, k_scale, "k_scale", cache.k_scale_fixed || IsF8(cache.k.dtype));
  cache.v_scale = Stored(borrower, v_scale, "v_scale", cache.v_scale_fixed || IsF8(cache.v.dtype));
  cache.k_zero = Stored(borrower, k_zero, "k_zero", false);
  cache.v_zero = Stored(borrower, v_zero, "v_zero", false);
  cache.k_group_stride = NumberOr0(k_group_stride, "k_group_stride");
  cache.v_group_stride = NumberOr0(v_group_stride, "v_group_stride");

  NewTokens tokens;
  tokens.k = borrower.Input(k, "k");
  if (!v.is_none()) tokens.v = borrower.Input(v, "v");
  if (!layout.is_none()) {
    const std::string name = nb::isinstance<nb::str>(layout) ? nb::cast<std::string>(layout) : "";
    if (name != "BHTD" && name != "BTHD")
      Raise(PyExc_ValueError, "layout: expected 'BHTD' or 'BTHD'");
    for (TensorView* view : {&tokens.k, &tokens.v}) {
      if (name == "BTHD" && view->rank == 4) *view = SwapAxes(*view, 1, 2);
    }
  }
  tokens.cu_seqlens = IntegersOr(borrower, cu_seqlens, "cu_seqlens");
  tokens.slots = IntegersOr(borrower, slots, "slots");
  tokens.past_lengths = IntegersOr(borrower, past_lengths, "past_lengths");
  tokens.lengths = IntegersOr(borrower, lengths, "lengths");
  tokens.pages.table = IntegersOr(borrower, page_table, "page_table");
  tokens.pages.begins = IntegersOr(borrower, page_begins, "page_begins");
  tokens.pages.keys = NumberOr0(page_keys, "page_keys");
  LiftSlots(&tokens);
  CheckOverlap(cache, tokens);

  AppendOptions options;
  if (!isa.is_none()) {
    if (!nb::isinstance<nb::str>(isa)) Raise(PyExc_TypeError, "isa: expected a string");
    Check(ParseTarget(nb::cast<std::string>(isa).c_str(), &options.target));
  }
  const int asked = threads.is_none() ? 0 : SmallInteger(threads, "threads", "an integer");
  if (asked < 0 || (asked == 0 && !threads.is_none()))
    Raise(PyExc_ValueError, "threads = " + std::to_string(asked) + ", expected 1 or more");
  AppendResult result;
  Status status;
  bool interrupted;
  {
    WithoutGil release;
    status =
        AppendHere(cache, tokens, options, &result, LibraryOf(k), asked, &release, &interrupted);
  }
  if (interrupted) throw nb::python_error();
  Check(status);
  return result.lost_nans;
}

DType TypeOf(const std::string& name, const char* what) {
  for (int n = 1; n < internal::kFormatCount; ++n) {
    if (name == Name(static_cast<DType>(n))) return static_cast<DType>(n);
  }
  Raise(PyExc_ValueError, std::string(what) + " = '" + name + "', expected a type of elements");
}

// (bytes, {tensor: (type, shape in units, strides, offset)}) of the cache that MakeCache makes.
nb::object CacheLayout(int64_t pages, int64_t page, int64_t heads, int64_t dk, int64_t dv,
                       const std::string& k_type, const std::string& v_type, int64_t k_group,
                       int64_t v_group, bool k_scale_fixed, bool v_scale_fixed) {
  CacheShape shape;
  shape.pages = pages, shape.page = page, shape.heads = heads, shape.dk = dk, shape.dv = dv;
  shape.k = {TypeOf(k_type, "k_type"), k_group, k_scale_fixed};
  shape.v = {TypeOf(v_type, "v_type"), v_group, v_scale_fixed};
  int64_t bytes = 0;
  Check(CacheBytes(shape, &bytes));
  KVCache cache;
  char* const base = reinterpret_cast<char*>(uintptr_t{64});  // of no memory: only offsets count
  Check(MakeCache(shape, base, bytes, &cache));
  nb::dict tensors;
  const auto add = [&](const char* name, const MutableTensorView& view) {
    if (!view.present()) return;
    const int64_t units = view.shape[3] / UnitElements(view.dtype);
    tensors[name] = nb::make_tuple(
        Name(view.dtype),
        nb::make_tuple(view.shape[0], view.shape[1], view.shape[2], units, UnitBytes(view.dtype)),
        nb::make_tuple(view.stride[0], view.stride[1], view.stride[2]),
        static_cast<int64_t>(static_cast<char*>(view.data) - base));
  };
  add("k", cache.k), add("v", cache.v);
  add("k_scale", cache.k_scale), add("k_zero", cache.k_zero);
  add("v_scale", cache.v_scale), add("v_zero", cache.v_zero);
  return nb::make_tuple(bytes, tensors);
}

}  // namespace

void DefineCaches(nb::module_& m) {
  m.def("append", &AppendTokens, nb::arg("k"), nb::arg("v") = nb::none(), nb::kw_only(),
        nb::arg("k_cache"), nb::arg("v_cache") = nb::none(), nb::arg("k_scale") = nb::none(),
        nb::arg("k_zero") = nb::none(), nb::arg("v_scale") = nb::none(),
        nb::arg("v_zero") = nb::none(), nb::arg("k_scale_fixed") = nb::none(),
        nb::arg("v_scale_fixed") = nb::none(), nb::arg("k_group_stride") = nb::none(),
        nb::arg("v_group_stride") = nb::none(), nb::arg("ring") = nb::none(),
        nb::arg("slots") = nb::none(), nb::arg("past_lengths") = nb::none(),
        nb::arg("page_table") = nb::none(), nb::arg("page_begins") = nb::none(),
        nb::arg("page_keys") = nb::none(), nb::arg("lengths") = nb::none(),
        nb::arg("cu_seqlens") = nb::none(), nb::arg("layout") = nb::none(),
        nb::arg("threads") = nb::none(), nb::arg("isa") = nb::none(), kAppendDoc);
  m.def("_cache_layout", &CacheLayout, nb::arg("pages"), nb::arg("page"), nb::arg("heads"),
        nb::arg("dk"), nb::arg("dv"), nb::arg("k_type"), nb::arg("v_type"), nb::arg("k_group"),
        nb::arg("v_group"), nb::arg("k_scale_fixed"), nb::arg("v_scale_fixed"));
}

}  // namespace fovea::python
