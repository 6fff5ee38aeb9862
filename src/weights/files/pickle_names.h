#pragma once

#include <weights/files/pickle.h>

#include <string>
#include <string_view>

namespace torch_attention::weights::files {

// The functions and classes that pickles of tensors name. None is ever called:
// their names determine how a description is read.

/// Returns whether a name such as "__torch__.Linear" is of a TorchScript class.
bool is_script_class(std::string_view name);

/// Throws c10::Error if the pickle names a function that runs commands or code.
/// No file of weights needs one.
void check_runs_no_code(const Pickle& pickle);

/// Returns whether the value is a tensor, even if it cannot be read.
bool is_tensor(const PickleValue& value);

/// Returns whether the function with this name makes a tensor that can be read.
bool makes_tensor(std::string_view name);

/// Returns why the value is a tensor that cannot be read, such as "is a sparse
/// tensor"; "" for other values.
std::string why_unread(const PickleValue& value);

/// Returns why tensors of a class are not read, and the Python call that
/// returns plain ones; "" for classes that `torch.load(weights_only=True)`
/// knows.
std::string why_class_unread(std::string_view class_name);

/// Returns whether the value is a dict of a class without further contents.
bool is_dict(const PickleValue& value);

/// Returns the description of an object, class or function that neither tensors
/// nor plain data need, such as 'is an object of the class "a.Config"'; "" for
/// other values.
std::string why_foreign(const PickleValue& value);

} // namespace torch_attention::weights::files
