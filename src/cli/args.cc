#include "cli/args.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cli/failure.h"
#include "measure/text.h"
#include "narrow.h"

namespace fovea::cli {
namespace {

const Option* Find(const Command& command, const std::string& name) {
  for (const Option& option : command.options) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

int64_t ToInteger(const std::string& name, const std::string& text, int64_t least, int64_t most) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || std::strchr(" \t\n\v\f\r", text[0]) != nullptr || *end != '\0' ||
      errno != 0 || end != text.c_str() + text.size()) {
    throw Failure(name + " = '" + text + "', expected an integer");
  }
  if (value < least || value > most) {
    throw Failure(
        name + " = " + text + ", expected " +
        (value < least ? "at least " + std::to_string(least) : "at most " + std::to_string(most)));
  }
  return value;
}

}  // namespace

Args::Args(const Command& command, const std::vector<std::string>& words) {
  const auto see_help = [&](const std::string& what, const std::string& which = "") {
    return Failure(what + which + "; see fovea " + command.name + " --help");
  };
  for (size_t n = 0; n < words.size(); ++n) {
    const size_t equals = words[n].find('=');
    const std::string name = words[n].substr(0, equals);
    const Option* const option = Find(command, name);
    if (option == nullptr) {
      throw see_help(name.compare(0, 1, "-") == 0 ? "unknown option '" : "unexpected argument '",
                     name + "'");
    }
    std::string value;
    if (option->value == nullptr) {
      if (equals != std::string::npos) throw see_help(name + " takes no value");
    } else if (equals != std::string::npos) {
      value = words[n].substr(equals + 1);
    } else {
      if (n + 1 == words.size()) throw see_help(name + " needs a value, ", option->value);
      value = words[++n];
    }
    if (!values_.emplace(name, value).second) throw Failure(name + " is given twice");
  }
}

std::string Args::Text(const std::string& name, const std::string& fallback) const {
  const auto value = values_.find(name);
  return value == values_.end() ? fallback : value->second;
}

int64_t Args::Integer(const std::string& name, int64_t fallback, int64_t least,
                      int64_t most) const {
  return Has(name) ? ToInteger(name, Text(name), least, most) : fallback;
}

double Args::Number(const std::string& name, double fallback) const {
  if (!Has(name)) return fallback;
  const std::string text = Text(name);
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value) ||
      (errno == ERANGE && value == 0)) {
    throw Failure(name + " = '" + text + "', expected a finite number");
  }
  return value;
}

float Args::Float(const std::string& name, float fallback) const {
  float value;
  if (!Narrow(Number(name, static_cast<double>(fallback)), &value))
    throw Failure(name + " = " + Text(name) + ", expected " + kFloatRange);
  return value;
}

std::vector<std::string> Args::List(const std::string& name, const std::string& fallback) const {
  const std::vector<std::string> parts = measure::Split(Text(name, fallback), ',');
  if (std::find(parts.begin(), parts.end(), "") != parts.end()) {
    throw Failure(name + " = '" + Text(name) + "', expected values separated by commas");
  }
  return parts;
}

std::vector<int64_t> Args::Integers(const std::string& name, const std::string& fallback,
                                    int64_t least, int64_t most) const {
  std::vector<int64_t> values;
  for (const std::string& part : List(name, fallback))
    values.push_back(ToInteger(name, part, least, most));
  return values;
}

std::string Help(const Command& command) {
  const auto title = [](const Option& option) {
    return std::string(option.name) +
           (option.value == nullptr ? "" : std::string(" ") + option.value);
  };
  size_t width = 0;
  for (const Option& option : command.options) width = std::max(width, title(option).size());
  std::string text =
      std::string("usage: fovea ") + command.name + " [options]\n\n" + command.summary + "\n\n";
  for (const Option& option : command.options) {
    const std::string name = title(option);
    text += "  " + name + std::string(width - name.size() + 2, ' ') + option.help + "\n";
  }
  return text;
}

}  // namespace fovea::cli
