// `./train params`: the parameter table of a configuration; `./train --plan`: its memory.
#pragma once

#include <string>

#include "model/parameters.h"
#include "run/options.h"

namespace wobble {

/// One line per tensor: name, shape, role, how it starts, and what the optimizer and forward multiply.
std::string to_text(const ParameterTable& table);

/// Prints the table of the model that these options train. UserError as for training.
void print_parameters(const Options& options);

/// Prints what memory training with these options takes on its device, without taking it.
void print_plan(const Options& options);

}  // namespace wobble
