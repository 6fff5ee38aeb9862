#pragma once

#include <weights/files/pickle.h>

#include <string>
#include <string_view>

namespace torch_attention::weights::files {

// The functions and classes that pickles of tensors name. None is ever called:
// the names tell how to read a description.

/// Returns whether the name is that of a TorchScript class, "__torch__.Linear".
bool is_script_class(std::string_view name);

/// Returns whether a function of this name runs commands or code. No file of
/// weights has one.
bool runs_code(std::string_view name);

/// Returns whether the value is a tensor, whether or not it can be read.
bool is_tensor(const PickleValue& value);

/// Returns whether the function of this name makes a tensor that can be read.
bool makes_tensor(std::string_view name);

/// Returns why the value is a tensor that cannot be read, "is a sparse tensor";
/// "" if it is not one.
std::string why_unread(const PickleValue& value);

/// Returns why tensors of a class are not read, and the call that makes them
/// plain; "" for the classes that `torch.load(weights_only=True)` knows.
std::string why_class_unread(std::string_view class_name);

/// Returns whether the value is a dict of a class that holds nothing else.
bool is_dict(const PickleValue& value);

/// Returns the description of an object, class or function that neither tensors
/// nor plain data need, 'is an object of the class "a.Config"'; "" for others.
std::string why_foreign(const PickleValue& value);

} // namespace torch_attention::weights::files
