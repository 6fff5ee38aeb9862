# Unpacks the golden files where the tests read them: only if a pack has changed,
# and then all of them, so that no file of before is left.
set(TORCH_ATTENTION_GOLDEN_DIR "${CMAKE_CURRENT_BINARY_DIR}/golden")
file(GLOB packs CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/golden/*/*.zip")
# The tests read inputs of fuzzers as zip files.
list(FILTER packs EXCLUDE REGEX "/corpus/")
set_property(
  DIRECTORY
  APPEND
  PROPERTY CMAKE_CONFIGURE_DEPENDS ${packs})

set(wanted "")
foreach(pack ${packs})
  file(SHA256 "${pack}" hash)
  string(APPEND wanted "${hash} ${pack}\n")
endforeach()
set(unpacked "")
set(list_of_unpacked "${TORCH_ATTENTION_GOLDEN_DIR}.txt")
if(EXISTS "${list_of_unpacked}" AND EXISTS "${TORCH_ATTENTION_GOLDEN_DIR}")
  file(READ "${list_of_unpacked}" unpacked)
endif()
if(NOT unpacked STREQUAL wanted)
  file(REMOVE_RECURSE "${TORCH_ATTENTION_GOLDEN_DIR}" "${list_of_unpacked}")
  foreach(pack ${packs})
    file(ARCHIVE_EXTRACT INPUT "${pack}" DESTINATION
         "${TORCH_ATTENTION_GOLDEN_DIR}")
  endforeach()
  file(WRITE "${list_of_unpacked}" "${wanted}")
endif()
