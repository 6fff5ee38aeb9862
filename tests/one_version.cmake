# Fails where a file names another version than the project's.
#   cmake -D ROOT=FOLDER -D VERSION=1.2.3 -P one_version.cmake

string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${VERSION}")

function(expect file text)
  file(READ "${ROOT}/${file}" content)
  string(FIND "${content}" "${text}" position)
  if(position EQUAL -1)
    message(SEND_ERROR "${file}: expected ${text}")
  endif()
endfunction()

expect(CHANGELOG.md "## Version ${VERSION}")
expect(docs/build.md "libtorch_attention.so.${minor}")
expect(docs/build.md "torch-attention_${VERSION}_amd64.deb")
expect(packaging/conda/recipe.yaml "version: ${VERSION}")
expect(packaging/vcpkg/torch-attention/vcpkg.json "\"version\": \"${VERSION}\"")

file(
  GLOB files
  RELATIVE "${ROOT}"
  "${ROOT}/*.md"
  "${ROOT}/docs/*.md"
  "${ROOT}/examples/*/CMakeLists.txt"
  "${ROOT}/packaging/vcpkg/torch-attention/usage"
  "${ROOT}/tests/consumers/*/CMakeLists.txt")
foreach(file ${files})
  file(READ "${ROOT}/${file}" content)
  string(REGEX MATCHALL "find_package\\(TorchAttention [0-9.]+" calls "${content}")
  foreach(call ${calls})
    if(NOT call STREQUAL "find_package(TorchAttention ${minor}")
      message(SEND_ERROR "${file}: expected ${minor}, but got ${call}")
    endif()
  endforeach()
endforeach()
