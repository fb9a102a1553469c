#include "target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/registry.h"
#include "kernels/targets.h"
#include "validate.h"

namespace fovea {
namespace {

// Best first; of different architectures, those of one are never compiled together.
#define FOVEA_ENUMERATOR(X, BUILD, TARGET, ...) Target::TARGET,
constexpr Target kAllTargets[] = {FOVEA_FOR_EACH_TARGET(FOVEA_ENUMERATOR, _)};
constexpr size_t kTargetCount = sizeof(kAllTargets) / sizeof(kAllTargets[0]);

struct StoredList {
  Target targets[kTargetCount];
  TargetList list;
  explicit StoredList(bool (*has)(Target)) {
    for (Target target : kAllTargets) {
      if (has(target)) targets[list.count++] = target;
    }
    list.data = targets;
  }
};

// Behind the next lesser one where the CPU runs that one faster.
StoredList UsableList() {
  StoredList stored([](Target t) { return IsCompiled(t) && CpuSupports(t); });
  for (size_t n = 0; n + 1 < stored.list.count; ++n) {
    if (!CpuPrefers(stored.targets[n])) std::swap(stored.targets[n], stored.targets[n + 1]), ++n;
  }
  return stored;
}

// "avx512, avx2, …"
template <class Targets>
void JoinNames(const Targets& targets, char* text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (Target target : targets) {
    const int n =
        std::snprintf(text + used, size - used, "%s%s", used == 0 ? "" : ", ", Name(target));
    if (n < 0 || static_cast<size_t>(n) >= size - used) return;
    used += static_cast<size_t>(n);
  }
}

// An error that ends in the usable targets: kUnsupported for a target that the library knows.
Status NotUsable(bool known, const char* source, const char* given) {
  char names[128];
  JoinNames(UsableTargets(), names, sizeof(names));
  return (known ? Unsupported : Invalid)(
      "%s = %.48s, expected one that this build has and this CPU can run: %s", source, given,
      names);
}

Status ReadEnvironment(Target* target) {
  const TargetList usable = UsableTargets();
  const char* name = std::getenv("FOVEA_TARGET");
  *target = *usable.begin();  // what the compiler may use everywhere is always there
  if (name == nullptr || *name == '\0' || std::strcmp(name, Name(Target::kAuto)) == 0)
    return Status();
  for (Target t : usable) {
    if (std::strcmp(name, Name(t)) == 0) {
      *target = t;
      return Status();
    }
  }
  const bool known = std::any_of(std::begin(kAllTargets), std::end(kAllTargets),
                                 [&](Target t) { return std::strcmp(name, Name(t)) == 0; });
  return NotUsable(known, "FOVEA_TARGET", name);
}

}  // namespace

const char* Name(Target target) noexcept {
  switch (target) {
    case Target::kAuto:
      return "auto";
#define FOVEA_NAME(X, BUILD, TARGET, NAME, ...) \
  case Target::TARGET:                          \
    return NAME;
      FOVEA_FOR_EACH_TARGET(FOVEA_NAME, _)
  }
  return "unknown";
}

Status ParseTarget(const char* name, Target* target) noexcept {
  if (name != nullptr) {
    if (std::strcmp(name, Name(Target::kAuto)) == 0) {
      *target = Target::kAuto;
      return Status();
    }
    for (Target t : kAllTargets) {
      if (std::strcmp(name, Name(t)) == 0) {
        *target = t;
        return Status();
      }
    }
  }
  char names[128];
  JoinNames(kAllTargets, names, sizeof(names));
  return Invalid("target = %.40s, expected auto, %s", name == nullptr ? "null" : name, names);
}

Status ChooseTarget(Target asked, Target* target) noexcept {
  if (asked == Target::kAuto) return ActiveTarget(target);
  for (Target usable : UsableTargets()) {
    if (usable == asked) {
      *target = asked;
      return Status();
    }
  }
  const bool known =
      std::find(std::begin(kAllTargets), std::end(kAllTargets), asked) != std::end(kAllTargets);
  char given[48];
  std::snprintf(given, sizeof(given), "%s (%d)", Name(asked), static_cast<int>(asked));
  return NotUsable(known, "options.target", given);
}

TargetList CompiledTargets() noexcept {
  static const StoredList stored([](Target t) { return IsCompiled(t); });
  return stored.list;
}

TargetList UsableTargets() noexcept {
  static const StoredList stored = UsableList();
  return {stored.targets, stored.list.count};
}

Status ActiveTarget(Target* target) noexcept {
  struct Active {
    Target target;
    Status status;
    Active() : status(ReadEnvironment(&target)) {}
  };
  static const Active active;
  if (active.status.ok()) *target = active.target;
  return active.status;
}

}  // namespace fovea
