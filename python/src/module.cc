// The Python module fovea._core: attention, plans, merging, threads and instruction sets. What is
// exported here is documented in fovea/_core.pyi too.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "array.h"
#include "cache.h"
#include "call.h"
#include "cpus.h"
#include "errors.h"
#include "flash_kernel.h"
#include "fovea/version.h"
#include "gil.h"
#include "gradients.h"
#include "math_kernel.h"
#include "merging.h"
#include "numbers.h"
#include "operator.h"
#include "plans.h"
#include "pool.h"
#include "running.h"
#include "torch_api.h"

namespace fovea::python {
namespace {

const char* const kAttentionDoc =
    R"(Scaled dot-product attention, softmax(scale·q·kᵀ + …)·v, without a score matrix in memory.

Letters: B sequences, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, dk and dv sizes. Query head h reads KV head
h // (Hq // Hkv).

q [B, Hq, Tq, dk], k [B, Hkv, Tk, dk], v [B, Hkv, Tk, dv], or all three without B. Arrays are NumPy arrays (ml_dtypes.bfloat16 included), PyTorch tensors on the
CPU, or anything with DLPack or the buffer protocol: float32, float16 or bfloat16, each with its own type and any strides (transposed, negative, zero). k and v may
also be codes: int8, uint8, float8_e4m3fn, float8_e5m2, or fovea.quantised(array, type). Nothing is copied or cast; what does not fit raises.

Keywords, each None or left out when not wanted:
  out             array to write instead of a new one: [B, Hq, Tq, dv] in `layout`; memory that no input and no other output has
  scale           multiplies q·k; 1/√dk by default
  causal          'top-left' (query i sees keys j ≤ i), 'bottom-right' (the last query sees every key; what True means)
  window          (left, right): query i sees keys i + offset − left … i + offset + right; None or −1 leaves a side open
  query_offset    position of query 0 among the keys: an integer, or one per sequence (array or list of B)
  q_lengths, kv_lengths   array or list of B integers; rows behind q_lengths give out 0 and lse −inf, keys behind kv_lengths are never read
  key_offsets     position of the first key of each sequence, array or list of B: a cache that has dropped what lay before
  ring            True: k and v are rings, the key of position p lies in row p mod Tk; kv_lengths counts the keys so far and may exceed Tk
  page_table      int32 or int64 [B, max]: numbers of pages. k and v are then [pages, Hkv, page, d], and key n of sequence b is row n % page of page_table[b, n // page]
  page_begins     array or list of B + 1: the numbers of sequence b are those from page_begins[b] on, in a page_table of one axis
  page_keys       Tk of pages; as many as fit by default
  cu_seqlens_q, cu_seqlens_k   packed batches, array or list of B + 1 integers: then q and out (k and v) are [1, H, rows, d] or [H, rows, d]
  bias            added to scores, float32, float16 or bfloat16; broadcast to [B, Hq, Tq, Tk]; −inf removes a pair
  mask            bool, True = attend; broadcast as bias
  mask_bits       the same as uint8, eight keys in a byte, the first in bit 0 (numpy.packbits(…, axis=-1, bitorder='little'))
  mask_shape      shape of mask_bits in booleans, where its last axis is not Tk
  block_map       (visible, queries, keys): a bool array over blocks of queries × keys; False removes all pairs of a block
  parents         int32 or int64 [B, Tq]: a tree of queries (speculative decoding), −1 for roots
  k_scale, k_zero   of codes, (u − zero)·scale: four axes as k has (of layout), each of 1 to as many elements, of which ⌊a·n/N⌋ is that of element a; scales float32, float16,
                  bfloat16 or fovea.quantised(array, 'f32_z4'), zeros also int32, int8 or uint8
  v_scale, v_zero   of v, as k_scale and k_zero
  k_group_stride, v_group_stride   bytes from one group of channels that share scales to the next, where the groups of a row lie apart
  alibi_slopes    float32 [Hq], or a list: score −= slope·|i + offset − j|
  softcap         c: score = c·tanh(score / c)
  head_scales     float32 [Hq], or a list: multiplies the scale of each head, as in cosine attention
  bias_scales     float32 [Hq], or a list: multiplies the bias of each head
  key_ranges      int32 or int64 [B, Tq, 2], or [1, Tq, 2] for all sequences: query i sees keys begin ≤ j < end (documents, prefixes, images in a text)
  score_function  a compiled function that changes scores behind the bias, or (function, context): see help(fovea.score_function)
  sinks           float32 [Hq], or a list: one logit per head that only adds to the softmax denominator
  return_lse      also return the natural logarithm of the softmax denominator, float32 [B, Hq, Tq]
  return_weights  also return the softmax weights, float32 [B, Hq, Tq, Tk] (packed: Tq and Tk of the longest sequence)
  return_scores   also return scores, as weights, at score_stage: 'scaled', 'softcapped', 'masked' (default) or 'weights'
  lse, weights, scores   arrays to write instead of new ones, as out; returned too
  layout          'BHTD' (default), or 'BTHD' for q, k, v and out [B, T, H, d]
  out_layout      the layout of out where it differs
  threads         at most so many, the calling one included; default get_threads(). Small problems use one. Results do not depend on it, bit for bit
  isa             'avx2', 'avx512', …: one of targets(); the best by default
  engine          'auto', 'tile' (prefill) or 'row' (decode)
  product         'auto', 'f32' or 'bf16': what multiplies

Returns out, or a tuple of out and those of lse, weights, scores that were asked for, in this order: arrays of PyTorch where q is one of PyTorch, else of NumPy.

Raises TypeError for arguments of the wrong kind and element types that Fovea has none of; ValueError for sizes that do not match, other devices, tensors that
require gradients, and outputs that are read-only or share memory with anything else of the call; UnsupportedError (a ValueError) for legal problems that this build
cannot compute. On an error nothing was written.

Thread safety: may be called from any threads at the same time; the GIL is released while it computes. Arrays must not be written meanwhile.)";

nb::object Attention(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  Options options;
  options.Read(keywords, Options::Kind::kAttention);
  Call call(q, k, v, options);
  RunOnce(&call, options);
  return call.Results();
}

nb::object Slopes(nb::handle given_heads, nb::handle given_max_bias) {
  const int64_t heads = Integer(given_heads, "heads", "an integer");
  const float max_bias = Float(given_max_bias, "max_bias", "a number");
  if (heads < 0) {
    Raise(PyExc_ValueError, "heads = " + std::to_string(heads) + ", expected 0 or more");
  }
  void* data;
  nb::object slopes = Empty(Library::kNumpy, DType::kF32, 1, &heads, &data);
  AlibiSlopes(heads, static_cast<float*>(data), max_bias);
  return slopes;
}

std::vector<std::string> Names(TargetList list) {
  std::vector<std::string> names;
  for (Target target : list) names.emplace_back(Name(target));
  return names;
}

std::string Active() {
  Target target;
  Check(ActiveTarget(&target));
  return Name(target);
}

void SetThreads(nb::handle given) {
  const int threads = SmallInteger(given, "threads", "an integer");
  if (threads < 1) {
    Raise(PyExc_ValueError, "threads = " + std::to_string(threads) + ", expected 1 or more");
  }
  SetDefaultThreads(threads);
}

}  // namespace

NB_MODULE(_core, m) {
  // Whoever forgets the module and imports it again gets what there is: types are registered once.
  static PyObject* first = nullptr;
  if (first != nullptr) {
    PyDict_Update(PyModule_GetDict(m.ptr()), PyModule_GetDict(first));
    return;
  }
  first = nb::handle(m).inc_ref().ptr();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&EndGil));

  m.doc() = "Fovea's library, bound. Use the package fovea.";
  m.attr("__version__") = std::to_string(FOVEA_VERSION_MAJOR) + "." +
                          std::to_string(FOVEA_VERSION_MINOR) + "." +
                          std::to_string(FOVEA_VERSION_PATCH);

  PrepareForks();
  nb::dict names;
  names["__doc__"] = "A legal problem that this build cannot compute: fall back to something else.";
  names["__module__"] = "fovea";
  nb::object unsupported = nb::handle(reinterpret_cast<PyObject*>(&PyType_Type))(
      "UnsupportedError", nb::make_tuple(nb::handle(PyExc_ValueError)), names);
  m.attr("UnsupportedError") = unsupported;
  SetUnsupportedError(unsupported);

  m.def("attention", &Attention, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
        nb::arg("kwargs"), kAttentionDoc);

  nb::class_<QuantisedArray>(
      m, "quantised",
      R"(Says what the bytes of an array are: quantised(array, type) in the place of k, v, k_scale or v_scale. Nothing is copied.

array: uint8 or int8, of which the last axis is the bytes of a row; type: 'i4', 'u4', 'i4_high', 'u4_high', 'f8_e4m3fn', 'f8_e5m2', 'q8_0', 'q4_0', 'q4_1', 'q5_0', 'q5_1'
or 'iq4_nl'. Or float32 scales that hold the zero in their low four bits, type 'f32_z4'. Arrays of int8, uint8, float8_e4m3fn and float8_e5m2 need none of it.)")
      .def(nb::init<nb::object, const std::string&>(), nb::arg("array"), nb::arg("type"))
      .def_ro("array", &QuantisedArray::array, "The array that it was made of.")
      .def_prop_ro(
          "type", [](const QuantisedArray& self) { return std::string(Name(self.dtype)); },
          "The name of the type.")
      .def("__reduce__", [](const QuantisedArray& self) {
        return nb::make_tuple(nb::type<QuantisedArray>(),
                              nb::make_tuple(self.array, std::string(Name(self.dtype))));
      });

  BindPlans(m);
  m.def("_operator", &RunOperator, nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("attn_mask").none(), nb::arg("causal"), nb::arg("scale").none(), nb::arg("groups"),
        nb::arg("threads"), nb::arg("wants_weights"), nb::arg("options").none(),
        nb::arg("out").none());
  m.def("_observe", &Observe, nb::arg("observer").none());
  m.def("_connect", &ConnectToTorch, nb::arg("functions"));
  m.def("_take_flash", &TakeFlash);
  m.def("_leave_flash", &LeaveFlash);
  m.def("_math_kernel", &MathKernel, nb::arg("slow"), nb::arg("plain"));
  m.def("_kernel_runs", &KernelRuns);
  DefineCaches(m);
  m.def("_cpu_quota", &CpuQuota, nb::arg("root"));
  BindMerging(m);
  BindGradients(m);
  m.def(
      "alibi_slopes", &Slopes, nb::arg("heads"), nb::arg("max_bias") = 8.0f,
      "The standard ALiBi slopes of so many query heads, float32 [heads] (Press et al. 2021, §3).");
  m.def(
      "targets", [] { return Names(UsableTargets()); },
      "Names of the instruction sets that this CPU can run, the best first.");
  m.def(
      "compiled_targets", [] { return Names(CompiledTargets()); },
      "Names of the instruction sets that this build has, the most capable first.");
  m.def("active_target", &Active,
        "The instruction set that calls use unless they say isa=…: FOVEA_TARGET of the "
        "environment, or the best one.");
  m.def("set_threads", &SetThreads, nb::arg("threads"),
        "The number of threads of calls that do not say it, the calling one included; 1 or more.");
  m.def("get_threads", &DefaultThreads,
        "The number of threads of calls that do not say it: at first that of the CPUs that the "
        "process may use: those of its affinity, and no more than its control groups' quota.");
}

}  // namespace fovea::python
