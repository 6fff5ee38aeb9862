#pragma once

#include <weights/files/pickle.h>

#include <string_view>

namespace torch_attention::weights::files {

// The functions and classes that pickles of tensors name. None is ever called:
// the names tell how to read a description.

/// Returns whether a pickle may have this name. A pickle of a TorchScript
/// archive (`is_script`) may also name the classes of modules.
bool is_known(std::string_view name, bool is_script);

/// Returns whether the name is that of a TorchScript class, "__torch__.Linear".
bool is_script_class(std::string_view name);

/// Returns whether the value is a tensor that can be read.
bool is_tensor(const PickleValue& value);

/// Returns whether the function of this name makes a tensor that can be read.
bool makes_tensor(std::string_view name);

/// Returns why the value is a tensor that cannot be read, "is a sparse tensor";
/// "" if it is not one.
std::string_view why_unread(const PickleValue& value);

/// Returns whether the value is a dict of any class.
bool is_dict(const PickleValue& value);

} // namespace torch_attention::weights::files
