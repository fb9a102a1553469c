// Prints the bits that the library computes: a line for each problem, target, engine and product,
// with a hash of each output. ./dev same-bits builds it from one source against two revisions of
// the library and compares the lines. So it uses the public headers alone, and of them only what
// stands in the oldest revision that is still compared with.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

#include "caches.h"
#include "fovea/fovea.h"
#include "grids.h"
#include "problem.h"
#include "random_problems.h"
#include "suite.h"

namespace fovea::same_bits {
namespace {

struct Request {
  int64_t every = 1;
  std::string only;     // the name of a case, or "grid/"; empty: all
  bool values = false;  // print all elements too
};

constexpr struct {
  Engine engine;
  Product product;
} kChoices[] = {{Engine::kAuto, Product::kAuto},
                {Engine::kTile, Product::kF32},
                {Engine::kTile, Product::kBF16},
                {Engine::kRow, Product::kF32},
                {Engine::kRow, Product::kBF16}};

void PrintHash(const char* name, Tensor* tensor) {
  if (!tensor->view().present()) return;
  std::printf(" %s=%016llx", name, static_cast<unsigned long long>(tensor->Hash()));
}

void PrintValues(const char* name, const Tensor& tensor) {
  if (!tensor.view().present()) return;
  int64_t n = 0;
  tensor.ForEach([&](char* address) {
    std::printf("  %s[%lld] = %a\n", name, static_cast<long long>(n++),
                Decode(tensor.view().dtype, address));
  });
}

// "name target engine product: …", the part before the colon being the same in all revisions.
void Print(const Request& request, Case* c, const std::string& how, const PlanOptions& options) {
  const Status status = RunCase(c, options);
  std::printf("%s %s:", c->name.c_str(), how.c_str());
  if (!status.ok()) {
    std::printf(" refused with code %d\n", static_cast<int>(status.code()));
    return;
  }
  PrintHash("out", &c->out);
  PrintHash("lse", &c->lse);
  PrintHash("weights", &c->weights);
  PrintHash("scores", &c->scores);
  std::printf("\n");
  if (!request.values) return;
  PrintValues("out", c->out);
  PrintValues("lse", c->lse);
  PrintValues("weights", c->weights);
  PrintValues("scores", c->scores);
}

void PrintAll(const Request& request, Case c) {
  if (!c.parts.empty()) return Print(request, &c, "- - -", {});
  for (const Target target : UsableTargets()) {
    for (const auto& choice : kChoices) {
      PlanOptions options = c.options;
      options.target = target;
      options.engine = choice.engine;
      options.product = choice.product;
      Print(request, &c,
            std::string(Name(target)) + " " + Name(choice.engine) + " " + Name(choice.product),
            options);
    }
  }
}

void PrintSlopes() {
  for (int64_t Hq = 1; Hq <= 70; ++Hq) {
    Tensor slopes(DType::kF32, {Hq});
    AlibiSlopes(Hq, static_cast<float*>(slopes.mutable_view().data));
    std::printf("slopes/%lld - - -:", static_cast<long long>(Hq));
    PrintHash("slopes", &slopes);
    std::printf("\n");
  }
}

// Whether `only` is the name of the case, or begins it and ends in a slash.
bool Wanted(const Request& request, const std::string& name) {
  const std::string& only = request.only;
  if (only.empty() || only == name) return true;
  return only.back() == '/' && name.compare(0, only.size(), only) == 0;
}

void PrintCases(const Request& request, int64_t count,
                const std::function<std::string(int64_t index)>& name,
                const std::function<Case(int64_t index)>& make) {
  for (int64_t n = 0; n < count; n += request.every) {
    if (!Wanted(request, name(n))) continue;
    PrintAll(request, make(n));
  }
}

int Main(int argc, char** argv) {
  Request request;
  for (int a = 1; a < argc; ++a) {
    const std::string argument = argv[a];
    if (argument == "--every" && a + 1 < argc) {
      request.every = std::atoll(argv[++a]);
    } else if (argument == "--only" && a + 1 < argc) {
      request.only = argv[++a];
    } else if (argument == "--values") {
      request.values = true;
    } else {
      std::fprintf(stderr, "usage: bits [--every N] [--only NAME] [--values]\n");
      return 2;
    }
  }
  if (request.every < 1) request.every = 1;

  if (request.only.empty()) PrintSlopes();
  const auto numbered = [](const char* group) {
    return [group](int64_t n) { return std::string(group) + "/" + std::to_string(n); };
  };
  PrintCases(request, kMergeCount, numbered("merge"), MergeCase);
  for (const char* const name : {"edge", "onnx", "merge"}) {
    const Suite suite(name);
    PrintCases(
        request, suite.size(), [&](int64_t n) { return suite.NameOf(n); },
        [&](int64_t n) { return suite.Load(n); });
  }
  PrintCases(request, GridCount(), numbered("grid"), GridCase);
  PrintCases(request, kLongCount, numbered("long"), LongCase);
  PrintCases(request, kRandomCount, numbered("random"), RandomCase);
  PrintCases(request, kCacheCount, numbered("cache"), CacheCase);
  return 0;
}

}  // namespace
}  // namespace fovea::same_bits

int main(int argc, char** argv) {
  try {
    return fovea::same_bits::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bits: %s\n", error.what());
    return 2;
  }
}
