// The options of one command: declared once, for parsing and for --help.
#ifndef FOVEA_CLI_ARGS_H_
#define FOVEA_CLI_ARGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fovea::cli {

struct Option {
  const char* name;   // "--scale"
  const char* value;  // what --help calls its value; null: a flag without one
  const char* help;
};

struct Command {
  const char* name;
  const char* summary;  // one line
  std::vector<Option> options;
  int (*run)(const class Args& args);  // returns the exit code
};

// What was given. Values of the wrong form throw a Failure that names the option.
class Args {
 public:
  // `words` are those behind the command's name: "--name value", "--name=value" or "--flag". Throws
  // on unknown options, missing values, and options given twice.
  Args(const Command& command, const std::vector<std::string>& words);

  bool Has(const std::string& name) const { return values_.count(name) != 0; }
  std::string Text(const std::string& name, const std::string& fallback = "") const;
  int64_t Integer(const std::string& name, int64_t fallback, int64_t least, int64_t most) const;
  // finite, and not so small that it is 0 as a double
  double Number(const std::string& name, double fallback) const;
  // the same, and as a float
  float Float(const std::string& name, float fallback) const;
  // separated by commas, none empty
  std::vector<std::string> List(const std::string& name, const std::string& fallback) const;
  std::vector<int64_t> Integers(const std::string& name, const std::string& fallback, int64_t least,
                                int64_t most) const;

 private:
  std::map<std::string, std::string> values_;
};

// The text of `fovea COMMAND --help`.
std::string Help(const Command& command);

}  // namespace fovea::cli

#endif  // FOVEA_CLI_ARGS_H_
