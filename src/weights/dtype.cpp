#include <torch_attention/weights/dtype.h>

#include <check.h>
#include <weights/files/dtypes.h>

namespace torch_attention {

std::string dtype_name(c10::ScalarType dtype) {
  return std::string(weights::files::python_dtype(dtype));
}

c10::ScalarType select_dtype(const std::string& name) {
  const auto dtype = weights::files::dtype_from_python("torch." + name);
  TORCH_ATTENTION_CHECK(
      dtype.has_value(),
      "select_dtype: expected a dtype such as float32, bfloat16 or "
      "int64, but got \"{}\"",
      name);
  return *dtype;
}

} // namespace torch_attention
