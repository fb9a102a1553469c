// The commands of the program, one function a file, each with the options that --help shows.
#ifndef FOVEA_CLI_COMMANDS_H_
#define FOVEA_CLI_COMMANDS_H_

#include "cli/args.h"

namespace fovea::cli {

Command InfoCommand();
Command AttendCommand();
Command BenchCommand();
Command CheckCommand();
Command DemoCommand();

}  // namespace fovea::cli

#endif  // FOVEA_CLI_COMMANDS_H_
